#!/usr/bin/env bash
# Sourced by the other scripts: `needs TOOL...` ends them if a program is missing, and prints what to install.

needs() {
    local tool missing=()
    for tool; do
        command -v -- "$tool" >/dev/null || missing+=("$tool")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "programs that are missing: ${missing[*]}; on Debian or Ubuntu: apt-get install ${missing[*]}" >&2
        exit 69
    fi
}

needs_root() { # WHAT
    [ "$(id -u)" = 0 ] || { echo "$1 works as root only: you are $(id -un 2>/dev/null || id -u); use sudo" >&2; exit 69; }
}
