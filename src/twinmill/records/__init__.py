"""Every noun that crosses a process or a disk: frozen structs, no behaviour, no torch. `wire` is the only serializer."""
