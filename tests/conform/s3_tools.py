"""Clients of S3 that `s3_clients.py` takes through its steps: their programs, and the command of each verb."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.conform.clients import PYTHON

BOTO3 = """
import os, sys
bucket, (verb, file, key) = os.environ["BUCKET"], sys.argv[1:]
if verb == "put":
    s3.upload_file(file, bucket, key)
elif verb == "get":
    s3.download_file(bucket, key, file)
elif verb == "delete":
    s3.delete_object(Bucket=bucket, Key=key)
else:
    print(*(each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]), sep="\\n")
"""
MINIO = """
import os, sys, minio
bucket, (verb, file, key) = os.environ["BUCKET"], sys.argv[1:]
s3 = minio.Minio(os.environ["HOST"], access_key=os.environ["ID"], secret_key=os.environ["SECRET"])
if verb == "put":
    s3.fput_object(bucket, key, file)
elif verb == "get":
    s3.fget_object(bucket, key, file)
elif verb == "delete":
    s3.remove_object(bucket, key)
else:
    print(*(each.object_name for each in s3.list_objects(bucket, recursive=True)), sep="\\n")
"""
S3FS = """
import os, shutil, subprocess, sys
(verb, file, key), bucket, home, url = sys.argv[1:], os.environ["BUCKET"], os.environ["HOME"], os.environ["URL"]
at, passwd = home + "/at", home + "/.passwd-s3fs"
with open(passwd, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as keys:
    print(os.environ["ID"], os.environ["SECRET"], sep=":", file=keys)
os.makedirs(at, exist_ok=True)
mount = subprocess.Popen(["s3fs", bucket, at, "-f", "-o", f"url={url}", "-o", "use_path_request_style"])
while not os.path.ismount(at):
    if mount.poll() is not None:
        sys.exit("s3fs ended")
try:
    if verb == "put":
        shutil.copyfile(file, f"{at}/{key}")
    elif verb == "get":
        shutil.copyfile(f"{at}/{key}", file)
    elif verb == "delete":
        os.remove(f"{at}/{key}")
    else:
        print(*os.listdir(at), sep="\\n")
finally:
    subprocess.run(["fusermount", "-u", at])
    mount.wait()
"""
RESTIC = """
verb=$1 file=$2 key=$3
r() { restic -r "s3:$URL/$BUCKET/$key" --cacert "$CA" "$@"; }
case $verb in
put) r init && cd "$HOME" && ln -f "$file" "$key" && r backup "$key" ;;
get) r check && r dump latest "/$key" > "$file" ;;
delete) r forget --prune "$(r snapshots --json | sed 's/.*"id":"\\([0-9a-f]*\\)".*/\\1/')" ;;
list) r ls latest ;;
esac
"""
DAVIX = "--s3accesskey {id} --s3secretkey {secret} --s3region us-east-1 --s3alternate --capath {capath} "
AWS_KEY = "AWS_ACCESS_KEY_ID={id} AWS_SECRET_ACCESS_KEY={secret}"


@dataclass(frozen=True)
class Tool:
    """A client: its version and, by verb, its commands; `{...}` are filled in.

    `files`: below HOME, from a snippet of `chelonia s3 configure` and what follows it. `visible`: the prefix of keys
    that say that `{key}` is there. `late`: the code that refuses a wrong clock, another one for signatures in a query.
    """

    version: str
    put: str
    get: str
    list: str
    delete: str
    files: dict[str, tuple[str, str]] = field(default_factory=dict)
    environment: str = ""
    visible: str = "{key}"
    late: str = "RequestTimeTooSkewed"


def scripted(version: str, by: str, name: str, **more: Any) -> Tool:
    """A client behind a script that takes verb, file and key."""
    verbs = {verb: f"{by} {{home}}/{name} {verb} {{file}} {{key}}" for verb in ("put", "get", "list", "delete")}
    return Tool(version, **verbs, **more)


def library(name: str, snippet: str, code: str, environment: str = "") -> Tool:
    version = f"{PYTHON} -c print(__import__('{name}').__version__)"
    return scripted(version, PYTHON, f"by_{name}.py", files={f"by_{name}.py": (snippet, code)}, environment=environment)


TOOLS = {
    "aws": Tool(
        "aws --version", "aws s3 cp {file} s3://{bucket}/{key}", "aws s3 cp s3://{bucket}/{key} {file}",
        "aws s3 ls --recursive s3://{bucket}", "aws s3 rm s3://{bucket}/{key}", {".aws/config": ("aws", "")},
    ),
    "boto3": library("boto3", "boto3", BOTO3),
    "s3cmd": Tool(
        "s3cmd --version", "s3cmd put {file} s3://{bucket}/{key}", "s3cmd get --force s3://{bucket}/{key} {file}",
        "s3cmd ls -r s3://{bucket}", "s3cmd rm s3://{bucket}/{key}", {".s3cfg": ("s3cmd", "")},
    ),
    "rclone": Tool(
        "rclone version", "rclone --ca-cert {ca} copyto {file} chelonia:{bucket}/{key}",
        "rclone --ca-cert {ca} copyto chelonia:{bucket}/{key} {file}", "rclone --ca-cert {ca} lsf -R chelonia:{bucket}",
        "rclone --ca-cert {ca} deletefile chelonia:{bucket}/{key}", {".config/rclone/rclone.conf": ("rclone", "")},
    ),
    "s5cmd": Tool(
        "s5cmd version", "sh {home}/s5cmd cp --raw {file} s3://{bucket}/{key}",
        "sh {home}/s5cmd cp --raw s3://{bucket}/{key} {file}", "sh {home}/s5cmd ls s3://{bucket}",
        "sh {home}/s5cmd rm --raw s3://{bucket}/{key}", {"s5cmd": ("s5cmd", '\nexec s5cmd "$@"\n')},
    ),
    "MinIO's SDK": library("minio", "", MINIO, "SSL_CERT_FILE={ca}"),
    "s3fs (mount)": scripted(
        "s3fs --version", "python3", "s3fs.py", files={"s3fs.py": ("", S3FS)}, environment="CURL_CA_BUNDLE={ca}",
    ),
    "davix": Tool(
        "davix-put --version", f"davix-put {DAVIX} {{file}} s3s://{{host}}/{{bucket}}/{{quoted}}",
        f"davix-get {DAVIX} s3s://{{host}}/{{bucket}}/{{quoted}} {{file}}", f"davix-ls {DAVIX} s3s://{{host}}/{{bucket}}",
        f"davix-rm {DAVIX} s3s://{{host}}/{{bucket}}/{{quoted}}", late="AccessDenied",
    ),
    "restic": scripted(
        "restic version", "sh", "restic", files={"restic": ("", RESTIC)}, environment=AWS_KEY + " RESTIC_PASSWORD=x",
        visible="{key}/snapshots/",
    ),
}  # fmt: skip
