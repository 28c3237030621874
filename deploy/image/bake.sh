#!/bin/sh
# The last step of the build: the image's record of itself, and a plan that runs without any mounted folder.
#
# Writes /etc/explicit-learning/image.json (lock, commit, base image), /etc/explicit-learning/sbom.cdx.json (the bill of
# materials) and, in /work, a frozen plan of the embedded dataset.
set -eu
umask 022
root=/opt/explicit-learning
CODE_COMMIT=${CODE_COMMIT:-}
case $CODE_COMMIT in
    *[!0-9a-f]* | '') bad=1 ;;
    *) bad=$([ ${#CODE_COMMIT} -eq 40 ] || echo 1) ;;
esac
if [ -n "$bad" ]; then
    echo "CODE_COMMIT is '$CODE_COMMIT'; expected 40 hexadecimal digits: --build-arg CODE_COMMIT=\$(git rev-parse HEAD)" >&2
    exit 64
fi
case $CODE_DIRTY in
    true | false) ;;
    *) echo "CODE_DIRTY is '$CODE_DIRTY'; expected true or false" >&2; exit 64 ;;
esac

# A user of any id may read all files, whatever the builder's umask and the checkout's owner.
chown -R 0:0 "$root"
chmod -R u=rwX,go=rX "$root"
mkdir -p /etc/explicit-learning /work /cache /out
grep -q '^[^:]*:[^:]*:1000:' /etc/passwd || echo 'explicit:x:1000:1000:Explicit Learning:/cache:/usr/sbin/nologin' >>/etc/passwd
grep -q '^[^:]*:[^:]*:1000:' /etc/group || echo 'explicit:x:1000:' >>/etc/group

export PYTHONHASHSEED=0
/opt/env/bin/python -m compileall -q -f -j 1 --invalidation-mode unchecked-hash "$root/explicit_learning" "$root/tests"
/opt/tools/bin/python "$root/deploy/image/bill_of_materials.py" /opt/env >/etc/explicit-learning/sbom.cdx.json
PYTHONPATH=$root /opt/env/bin/python "$root/deploy/image/identity.py" >/etc/explicit-learning/image.json

printf '#!/bin/sh\nexec /opt/env/bin/python %s/entrypoint.py "$@"\n' "$root" >/usr/local/bin/el
chmod 755 /usr/local/bin/el

# An image whose environment is not the lock's, file by file, would refuse every plan.
# shellcheck disable=SC2153 # a build argument
case $LOCK in
    full) lock=environment.lock ;;
    *) lock=environment.cpu.lock ;;
esac
/opt/env/bin/python "$root/entrypoint.py" lock check --deep --lock "$root/$lock"

cd /work
/opt/env/bin/python "$root/entrypoint.py" freeze "$root/plans/demo/intervention_grpo.json" -o plan.json
# Without a folder mounted at /work, runs go to the volume.
ln -s /out runs
chmod 1777 /work /cache /out
rm -rf /opt/build /cache/* /cache/.[!.]* /root/.cache /tmp/* 2>/dev/null || true
