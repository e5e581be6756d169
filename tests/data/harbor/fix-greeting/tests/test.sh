#!/bin/bash
cd /app
mkdir -p /logs/verifier
passed=1
while read -r name; do
    [ "$(python3 src/greet.py "$name")" = "Hello, $name!" ] || passed=0
done < /tests/names.txt
echo $passed > /logs/verifier/reward.txt
