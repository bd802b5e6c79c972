#!/bin/sh
# The API's style, and that nothing breaks what the last release promised: `buf lint` and `buf breaking`.
# buf is no Debian package (`pip install buf-bin`): looked for on PATH and in build/tools/bin. Exit 77: skipped, with a
# reason; buf itself decides otherwise.
set -eu
cd "$(dirname "$0")/../.."

buf=$(command -v buf || true)
if [ -z "$buf" ] && [ -x build/tools/bin/buf ]; then buf=build/tools/bin/buf; fi
if [ -z "$buf" ]; then
  echo "proto_lint: skipped: no buf on PATH or in build/tools/bin (python3 -m venv build/tools && build/tools/bin/pip install buf-bin)"
  exit 77
fi

"$buf" lint proto
echo "proto_lint: style: ok"

if ! git rev-parse --git-dir > /dev/null 2>&1; then
  echo "proto_lint: breaking changes: nothing to compare with (not a git checkout)"
  exit 0
fi
tag=$(git describe --tags --abbrev=0 2> /dev/null || true)
if [ -z "$tag" ]; then
  echo "proto_lint: breaking changes: nothing to compare with (no tag yet)"
  exit 0
fi
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git archive "$tag" proto | tar -x -C "$old"
"$buf" breaking proto --against "$old/proto"
echo "proto_lint: nothing breaks $tag"
