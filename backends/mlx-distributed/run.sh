#!/bin/sh
# What LocalAI starts: `run.sh --addr 127.0.0.1:PORT`, in this folder. See docs/localai.md.
# `exec`, so that LocalAI's signals reach Chorus and Chorus sees LocalAI as its parent.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)

# An installation of its own (install.sh), the checkout this folder is part of, then whatever is on the PATH.
for chorus in "$here/venv/bin/chorus" "$here/../../.venv/bin/chorus"; do
    if [ -x "$chorus" ]; then
        exec "$chorus" localai "$@"
    fi
done
if command -v chorus >/dev/null 2>&1; then
    exec chorus localai "$@"
fi
echo "error: Chorus is not installed: run $here/install.sh, or put the chorus command on the PATH" >&2
exit 1
