#!/bin/sh
# Installs Chorus into this folder, for a LocalAI that has none on its PATH.
# Usage: install.sh [PACKAGE]   PACKAGE: what pip takes; this checkout if there is one, else mlx-chorus.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
python=${PYTHON:-python3}

package=${1:-}
if [ -z "$package" ]; then
    if [ -f "$here/../../pyproject.toml" ]; then package="$here/../.."; else package=mlx-chorus; fi
fi
# A Mac needs nothing extra; Linux needs the wheel of its accelerator.
if [ "$(uname -s)" = Darwin ]; then
    extra=
elif nvidia-smi >/dev/null 2>&1; then
    extra='[cuda13]'
else
    extra='[cpu]'
fi
"$python" -m venv "$here/venv"
"$here/venv/bin/python" -m pip install --disable-pip-version-check "$package$extra"
echo "installed: $("$here/venv/bin/chorus" --version) in $here/venv"
