#!/usr/bin/env bash
# Installs what the tests need from Debian, and says why. Works as root or with sudo; says what is missing where neither
# is there. Does nothing when everything is there already.
set -euo pipefail

declare -A needed=(
  [mariadbd]="mariadb-server-core"  # the catalog's suite runs on a real MariaDB
  [mariadb]="mariadb-client-core"   # mariadb-install-db calls it
  [chromium]="chromium"             # the console's tests drive a real browser
  [java]="openjdk-17-jre-headless"  # compaction runs on Spark
  [promtool]="prometheus"           # the alert rules are tested by it, and it watches the chart's pods
  [ip]="iproute2"                   # networks of the chart's pods
  [nft]="nftables"                  # their services and policies
  [systemd-analyze]="systemd"       # verifies the units
)
missing=()
[ -e /usr/lib/galera/libgalera_smm.so ] || missing+=(galera-4) # makes MariaDB a node that the catalog refuses
ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || missing+=(libfaketime) # chaos sets clocks
for program in "${!needed[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${needed[$program]}")
done
[ -n "$(ls /usr/share/fonts/truetype/dejavu 2>/dev/null)" ] || missing+=(fonts-dejavu-core) # text on screenshots
[ ${#missing[@]} -gt 0 ] || exit 0

run=()
if [ "$(id -u)" != 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    run=(sudo -n)
  else
    echo "make test needs these Debian packages: ${missing[*]}" >&2
    echo "Install them as root:  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi
echo "Installing Debian packages for the tests: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -qq
"${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
