# There, after every call that brought something: bash setup.sh CARRIED ROOT
# Parts are kept until all of a zip are there; then it is unpacked into ROOT. See README.md.
set -e
carried=$(realpath "$1")
mkdir -p "$2"
cd "$2"
mkdir -p parts arrived results
cp -r "$carried/tools" .
for sums in tools/*.sums; do
  name=$(basename "$sums" .sums)
  if [ -e "arrived/$name" ]; then continue; fi
  for part in "$carried/$name"-[0-9][0-9]; do
    if [ -d "$part" ]; then cp -r "$part" parts/; fi
  done
  if ! (cd parts && sha256sum --status -c "../$sums" 2> /dev/null); then
    echo "$name: $(ls parts | grep -c "^$name-") of $(wc -l < "$sums") parts are here"
    continue
  fi
  cat parts/"$name"-[0-9][0-9]/part > "parts/$name.zip"
  python3 -m zipfile -e "parts/$name.zip" .
  if [ -d wheels ]; then
    python3 -m pip install --quiet --no-index --no-deps --no-cache-dir --target site wheels/*.whl
    rm -r wheels
  fi
  rm -r parts/"$name"[-.]*
  touch "arrived/$name" # last: a driver that runs already waits for it
  echo "$name: unpacked"
done
