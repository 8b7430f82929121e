"""A rank's process ends without an exception: by an exit code, by a signal, by a bad memory access."""

import ctypes
import os
import signal
import sys

from gloo_loop import options, train

parser = options()
parser.add_argument("--how", required=True, help="sys_exit, os_exit, read_null, abort, or the name of a signal")
args = parser.parse_args()


def end() -> None:
    print(f"last words before {args.how}", flush=True)
    if args.how == "sys_exit":
        sys.exit(3)
    elif args.how == "os_exit":
        os._exit(7)
    elif args.how == "read_null":
        ctypes.string_at(0)
    elif args.how == "abort":
        os.abort()
    else:
        os.kill(os.getpid(), getattr(signal, args.how))
        signal.pause()


if __name__ == "__main__":
    train(args, end)
