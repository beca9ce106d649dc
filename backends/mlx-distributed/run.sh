#!/bin/sh
# What LocalAI starts, in this folder: `run.sh --addr 127.0.0.1:PORT` to serve it, and for `local-ai worker mlx-distributed`
# `run.sh --worker --backend ring --hostfile hosts.json --rank 1`. See docs/localai.md.
# `exec`, so that LocalAI's signals reach Chorus and Chorus sees LocalAI as its parent.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)

case " $* " in
*" --worker "*) command='worker mlx-distributed' ;;
*) command=localai ;;
esac

# An installation of its own (install.sh), the checkout this folder is part of, then whatever is on the PATH.
for chorus in "$here/venv/bin/chorus" "$here/../../.venv/bin/chorus"; do
    if [ -x "$chorus" ]; then
        exec "$chorus" $command "$@"
    fi
done
if command -v chorus >/dev/null 2>&1; then
    exec chorus $command "$@"
fi
echo "error: Chorus is not installed: run $here/install.sh, or put the chorus command on the PATH" >&2
exit 1
