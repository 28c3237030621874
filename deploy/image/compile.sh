#!/bin/sh
# Compiles packages without wheels from the sources that packages.sh downloaded and checked, without network and with the
# lock's own compiler (compiler.sh), and then all Python files of the environment to bytecode.
#
# The bytecode holds no time and is never compared with its source, because files of an image do not change. So two builds
# are equal, and a container with a read-only root does not compile all of torch at each start.
set -eu
umask 022
cd /opt/build
if [ -s sources.txt ]; then
    # shellcheck source=deploy/image/compiler.sh
    . ./compiler.sh
    python3 -m venv /opt/build/pip
    make_cuda_home /opt/build/cuda "$(echo /opt/env/lib/python3.*/site-packages)"
    export_compiler /opt/build/cuda /opt/env /opt/build
    # Without any network, where the builder allows it. As wheels, which record the hash of each file: Debian's pip would
    # let flash-attn's setup script copy its files itself.
    alone=
    if unshare --net true 2>/dev/null; then alone='unshare --net'; fi
    $alone /opt/build/pip/bin/python -m pip --python /opt/env/bin/python install --no-index --no-deps \
        --no-build-isolation --use-pep517 --require-hashes --no-binary :all: --find-links /opt/sources --no-compile \
        -r sources.txt
    rm -rf /opt/build/pip
fi
# In one process, because bytecode depends on what the process compiled before. All files are compiled again (-f), and
# no other process writes bytecode: the interpreter imports setuptools when it starts, and its bytecode would hold the
# time of the build.
PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 /opt/env/bin/python -m compileall -q -f -j 1 --invalidation-mode unchecked-hash /opt/env/lib ||
    echo "some files cannot be compiled by this version of Python (templates and examples, as in every environment)"
