#!/bin/sh
# Installs Chorus into this folder, for a LocalAI that has none on its PATH.
# Usage: install.sh [SOURCE]   SOURCE: a checkout, a wheel or a git address (git+https://…); the checkout that this
# folder is part of if there is one.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
python=${PYTHON:-python3}

source=${1:-$here/../..}
case $source in
*://* | *.whl) ;;
*)
    if [ ! -f "$source/pyproject.toml" ]; then
        echo "error: no checkout of Chorus at $source: say install.sh CHECKOUT, install.sh FILE.whl or" \
            "install.sh git+https://…" >&2
        exit 1
    fi
    ;;
esac
# A Mac needs nothing extra; Linux needs the wheel of its accelerator.
if [ "$(uname -s)" = Darwin ]; then
    extra=
elif nvidia-smi >/dev/null 2>&1; then
    extra='[cuda13]'
else
    extra='[cpu]'
fi
"$python" -m venv "$here/venv"
case $source in
*://*) package="mlx-chorus$extra @ $source" ;;
*) package=$source$extra ;;
esac
"$here/venv/bin/python" -m pip install --disable-pip-version-check "$package"
echo "installed: $("$here/venv/bin/chorus" --version) in $here/venv"
