"""The launcher with something else in torchrun's place: `python -m tests.launch.run_launcher OPTIONS COMMAND...`.

OPTIONS is a JSON object of `LaunchConfig` fields.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from traceml_client.protocol.errors import ConfigError
from traceml_launch import supervise
from traceml_launch.commandline.config import LaunchConfig, Target


def main() -> int:
    options = json.loads(sys.argv[1])
    options["logs_dir"] = Path(options["logs_dir"])
    config = LaunchConfig(target=Target(kind="script", name="stub"), **options)
    try:
        return supervise.run(config, torchrun_argv=sys.argv[2:])
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
