"""The product's side: what serves users and foreign harnesses, and turns what they did into episodes."""
