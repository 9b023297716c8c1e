#!/bin/sh
# axe-core, for the test of the report's accessibility: unpacks the pinned package below the folder in $1.
set -eu
version=4.14.1
sum=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
cd "$1"
npm pack --silent "axe-core@$version"
tar -xzf "axe-core-$version.tgz" package/axe.min.js
echo "$sum  package/axe.min.js" | sha256sum -c
