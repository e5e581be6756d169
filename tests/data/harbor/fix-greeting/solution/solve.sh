#!/bin/bash
set -e
cd /app
sed -i 's/"Hello " + sys.argv\[1\]/f"Hello, {sys.argv[1]}!"/' src/greet.py
echo done > notes.txt
