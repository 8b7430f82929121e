"""Prints its arguments as one line of JSON."""

import json
import sys

print(json.dumps(sys.argv[1:]), flush=True)
