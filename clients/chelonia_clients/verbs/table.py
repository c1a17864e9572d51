"""The table of all verbs: forms, options, and the function of each. `finding` finds the verb of a word."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia_clients.arguments import Flag

RECURSIVE = Flag("--recursive", "a collection or directory with all below it", "-r")
FORCE = Flag("--force", "overwrite what is there, atomically", "-f")
REPLICAS = Flag("--replicas", "copies to keep (default: ARC_NEEDED_REPLICAS, else 3)", "", "N")
PARALLEL = Flag("--parallel", "files moved at a time (default 6)", "-j", "N")
REMOVED = Flag("--parallel", "names removed at a time (default 48)", "-j", "N")
LONG = Flag("--long", "size, replicas and time too", "-l")
YES = Flag("--yes", "do not ask, also at a terminal", "-y")
DRY_RUN = Flag("--dry-run", "only show what would be done", "-n")
LIMIT = Flag("--limit", "move at most so much a second, like 500K or 10M", "", "RATE")
HUMAN = Flag("--human", "sizes as 1.5 MiB", "-h")
ONE = Flag("--one", "names alone, one a line", "-1")
NUL = Flag("--nul", "names alone, each with a NUL after it, for xargs -0", "-0")
FORMAT = Flag("--format", "a line of each: {name} {path} {type} {size} {copies} {wanted} {time} {guid}", "", "TEXT")
INCLUDE = Flag("--include", "of files only those that fit this pattern (may be repeated)", "", "PATTERN")
EXCLUDE = Flag("--exclude", "leave out what fits this pattern (may be repeated)", "", "PATTERN")
CHECKSUM = Flag("--checksum", "compare what is there by its bytes, not by size and time", "-c")
PARENTS = Flag("--parents", "make what is missing above it; no error when it is there", "-p")


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb.

    Args:
        operands: least and most (-1: any number) it takes.
        literal: operands may begin with `-`.
        names: number of first operands that may be names in the cluster (-1: all).
        patterns: which operands may be patterns of names in the cluster: "all", all but the "last", or none.
    """

    name: str
    synopsis: str
    summary: str
    act: str
    operands: tuple[int, int]
    flags: tuple[Flag, ...] = ()
    literal: bool = False
    examples: tuple[str, ...] = ()
    patterns: str = ""
    names: int = -1


_TRASH, _REMOVES, _LOOKS, _TREES, _SYNC = "verbs.trash", "verbs.removing", "verbs.listing", "verbs.trees", "verbs.sync"
_NAMES, _MOVES, _RULES, _ADMIN = "verbs.namespace", "verbs.transfer", "verbs.policy", "verbs.admin"
_ABOUT = "verbs.about"

STAT = Verb(
    "stat", "<LN> [<LN> ...]", "show all metadata of entries", f"{_LOOKS}:stat", (1, -1), (), False,
    ("stat /data/run1.root", "stat --json /data/run1.root"), "all",
)  # fmt: skip
MAKE_COLLECTION = Verb(
    "makeCollection", "[-p] <LN> [<LN> ...]", "make collections (also: make, mkdir)",
    f"{_NAMES}:make_collection", (1, -1), (PARENTS,), False, ("mkdir /data", "mkdir -p /data/2026/raw"),
)  # fmt: skip
UNMAKE_COLLECTION = Verb(
    "unmakeCollection", "<LN> [<LN> ...]", "remove empty collections (also: unmake, rmdir)",
    f"{_NAMES}:unmake_collection", (1, -1), (), False, ("rmdir /data/2025",),
)  # fmt: skip
MAKE_MOUNT = Verb(
    "makeMountPoint", "<LN> <URL>", "make a mount point (also: makemount)", f"{_NAMES}:make_mountpoint", (2, 2), (),
    False, ("makemount /old gsiftp://se.example.org/pnfs",), names=1,
)  # fmt: skip
UNMAKE_MOUNT = Verb(
    "unmakeMountPoint", "<LN>", "remove a mount point (also: unmount)", f"{_NAMES}:unmake_mountpoint", (1, 1), (),
    False, ("unmount /old",),
)  # fmt: skip
LIST = Verb(
    "list", "[-r] [-l] [-h] [-1] [-0] [--format TEXT] <LN> [<LN> ...]", "list collections", f"{_LOOKS}:list_", (1, -1),
    (RECURSIVE, LONG, HUMAN, ONE, NUL, FORMAT), False, ("list /", "list -r -l /data"), "all",
)  # fmt: skip
LS = Verb(
    "ls", "[-r] [-l] [-h] [-1] [-0] [--format TEXT] [<LN> ...]", "list collections; files show themselves",
    f"{_LOOKS}:ls", (0, -1), (RECURSIVE, LONG, HUMAN, ONE, NUL, FORMAT), False,
    ("ls /", "ls -lh '/data/*.root'", "ls -r --format '{size} {path}' /data"), "all",
)  # fmt: skip
DU = Verb(
    "du", "[-s] [-h] [<LN> ...]", "bytes and files below each collection", f"{_TREES}:du", (0, -1),
    (Flag("--summary", "only the names given, not what is below them", "-s"), HUMAN), False, ("du -h /data",), "all",
)  # fmt: skip
FIND = Verb(
    "find", "[<LN> ...] [--name PATTERN] [--type T] [--larger SIZE] [--smaller SIZE] [--newer TIME] [--older TIME] "
    "[-0] [--format TEXT]",
    "names below collections that fit all conditions", f"{_TREES}:find", (0, -1),
    (Flag("--name", "the last name fits this pattern", "", "PATTERN"),
     Flag("--type", "file, collection, mountpoint, symlink or special", "", "T"),
     Flag("--larger", "files of more than SIZE, like 500K or 10M", "", "SIZE"),
     Flag("--smaller", "files of less than SIZE", "", "SIZE"),
     Flag("--newer", "modified less than TIME ago, like 90s, 30m, 2h or 3d", "", "TIME"),
     Flag("--older", "modified more than TIME ago", "", "TIME"), NUL, FORMAT), False,
    ("find /data --name '*.root' --larger 1G", "find /data --older 30d -0 | xargs -0r chelonia rm"), "all",
)  # fmt: skip
QUOTA = Verb(
    "quota", "[-h] [<LN> ...]", "the quotas that apply to you below a collection (/), and their use (also: df)",
    "verbs.quota:quota", (0, -1), (HUMAN,), False, ("quota -h", "quota -h /atlas"), "all",
)  # fmt: skip
TREE = Verb(
    "tree", "[-h] [<LN> ...]", "draw what is below collections", f"{_TREES}:tree", (0, -1), (HUMAN,), False,
    ("tree /data",), "all",
)  # fmt: skip
DIFF = Verb(
    "diff", "[-c] [--include PATTERN] [--exclude PATTERN] <directory> <LN>",
    "how a local directory and a collection differ; exit code 1 where they do", f"{_SYNC}:diff", (2, 2),
    (CHECKSUM, INCLUDE, EXCLUDE), False, ("diff results /data/results", "diff -c results /data/results"),
)  # fmt: skip
WATCH = Verb(
    "watch", "[--every TIME] [--for TIME] [<LN> ...]", "report what appears, changes and goes below collections",
    f"{_TREES}:watch", (0, -1),
    (Flag("--every", "look again after TIME (2s)", "", "TIME"), Flag("--for", "end after TIME", "", "TIME")), False,
    ("watch /data/incoming",),
)  # fmt: skip
MOVE = Verb(
    "move", "<source LN> <target LN> [preserve]", "rename or move; preserve keeps the old name too (hard link)",
    f"{_NAMES}:move", (2, 3), (), False, ("move /data/a /data/b", "move /data/a /archive/"),
)  # fmt: skip
MV = Verb(
    "mv", "<source LN> ... <target LN>", "rename, or move into a collection", f"{_NAMES}:mv", (2, -1), (), False,
    ("mv /data/a /data/b /archive", "mv '/data/*.root' /archive"), "last",
)  # fmt: skip
LN = Verb(
    "ln", "<LN> <new LN>", "give a file another name (hard link)", f"{_NAMES}:link", (2, 2), (), False,
    ("ln /data/a /mine/a",),
)  # fmt: skip
PUT = Verb(
    "putFile", "[-r] [-f] [-n] [--replicas N] [-j N] [--limit RATE] [--include PATTERN] [--exclude PATTERN] "
    "<source> ... <target LN> [<number of replicas>]",
    "upload files or directories; - is stdin (also: put)", f"{_MOVES}:put", (2, -1),
    (RECURSIVE, FORCE, REPLICAS, PARALLEL, LIMIT, DRY_RUN, INCLUDE, EXCLUDE), False,
    ("put run1.root /data/", "put run1.root chelonia:/data/", "put -r results /data --replicas 2",
     "tar c . | chelonia put - /data/all.tar"),
)  # fmt: skip
GET = Verb(
    "getFile", "[-r] [-f] [-n] [-j N] [--limit RATE] [--include PATTERN] [--exclude PATTERN] "
    "<source LN> ... [<target>]",
    "download a file or collection; - is stdout (also: get)", f"{_MOVES}:get", (1, -1),
    (RECURSIVE, FORCE, PARALLEL, LIMIT, DRY_RUN, INCLUDE, EXCLUDE), False,
    ("get /data/run1.root", "get '/data/*.root' .", "get -r /data copy", "get /data/all.tar - | tar t"), "last",
)  # fmt: skip
SYNC = Verb(
    "sync", "[-n] [--delete] [-c] [--include PATTERN] [--exclude PATTERN] [--replicas N] [-j N] [--limit RATE] "
    "<source> <target>",
    "make a collection the same as a directory, or the other way; the one in the cluster is written chelonia:/path",
    f"{_SYNC}:sync", (2, 2),
    (DRY_RUN, Flag("--delete", "remove from the target what is not at the source"), CHECKSUM, INCLUDE, EXCLUDE,
     REPLICAS, PARALLEL, LIMIT), False,
    ("sync results chelonia:/data/results", "sync -n --delete chelonia:/data/results results",
     "sync --exclude '*.tmp' --exclude build/ . chelonia:/work"),
)  # fmt: skip
CP = Verb(
    "cp", "[-r] [-f] [--replicas N] [-j N] [--limit RATE] <source> ... <target>",
    "copy from, to and inside the cluster; names in the cluster are written chelonia:/path or arc:///path",
    f"{_MOVES}:cp", (2, -1), (RECURSIVE, FORCE, REPLICAS, PARALLEL, LIMIT), False,
    ("cp run1.root chelonia:/data/", "cp -r chelonia:/data .", "cp chelonia:/data/a chelonia:/data/b"), "last",
)  # fmt: skip
CAT = Verb(
    "cat", "<LN> [<LN> ...]", "print files", f"{_MOVES}:cat", (1, -1), (), False, ("cat /data/readme.txt",), "all"
)
DELETE = Verb(
    "delFile", "[-r] [-n] [-y] [-j N] <LN> [<LN> ...]", "remove files under all their names", f"{_REMOVES}:delete",
    (1, -1), (RECURSIVE, DRY_RUN, YES, REMOVED), False, ("delFile /data/a", "delFile -r /data/old"), "all",
)  # fmt: skip
RM = Verb(
    "rm", "[-r] [-f] [-n] [-y] [-j N] <LN> [<LN> ...]", "drop single names; the last name takes the file along",
    f"{_REMOVES}:remove", (1, -1),
    (RECURSIVE, Flag("--force", "do not ask, and what is not there is no error", "-f"), DRY_RUN, YES, REMOVED), False,
    ("rm /data/a", "rm -r /data/old", "rm -n '/data/*.tmp'"), "all",
)  # fmt: skip
UNDELETE = Verb(
    "undelete", "[--list] [-r] [<LN> [<new LN>]]", "restore a deleted file or tree, or --list what is kept",
    f"{_TRASH}:undelete", (0, 2),
    (Flag("--list", "show what was deleted (in a collection, or all of yours) and is kept", "-l"), RECURSIVE), False,
    ("undelete /data/a", "undelete -r /data/old", "undelete --list /data",
     "undelete 5d9b7a52-0c7c-4c3e-9a3f-0b8f6f0e7f11 /data/a.old"),
)  # fmt: skip
UNLINK = Verb(
    "unlink", "<LN> [<LN> ...]", "drop single names", f"{_REMOVES}:unlink", (1, -1), (), False, ("unlink /mine/a",)
)
MODIFY = Verb(
    "modify", "[-r] <LN> set|unset|add <section> <property> [<value>]",
    "change metadata, or states: neededReplicas <n>, closed yes", f"{_RULES}:modify", (4, 5), (RECURSIVE,), True,
    ("modify /data/a set states neededReplicas 4", "modify /data/a set metadata run 1742"), names=1,
)  # fmt: skip
POLICY = Verb(
    "policy", "[-r] <LN> [set|change|clear <identity> <action list>]", "show (<LN> alone) or change access rules",
    f"{_RULES}:policy", (1, -1), (RECURSIVE,), True,
    ("policy /data change ALL +read", "policy /data set /DC=org/O=X/CN=Jane Doe +read +addEntry",
     "policy /data clear VOMS:atlas", "policy /data"), names=1,
)  # fmt: skip
SHARE = Verb(
    "share", "[--for TIME] [--upload] [--write] <LN> [<LN> ...] | [--list] | [--revoke] <link or id> [...]",
    "print a link that works without a certificate; list links, and revoke them", "verbs.share:share", (0, -1),
    (Flag("--for", "validity: 90s, 30m, 2h, 3d (default 1d)", "", "TIME"),
     Flag("--upload", "let whoever has it add files, too; what is there stays"),
     Flag("--write", "let whoever has it add, replace and remove files: for programs that sign in by a password"),
     Flag("--list", "show the valid links"), Flag("--revoke", "revoke links, within seconds")), False,
    ("share /data/run1.root", "share /data/inbox --for 7d --upload", "share /home/jane --for 30d --write",
     "share --list", "share --revoke 3fb2c3d4e5f6"),
)  # fmt: skip
MOUNT = Verb(
    "mount", "[-o <options>] [--background] [--log FILE] <LN> <directory> | [--status] [<directory> ...]",
    "show a collection as a directory of this machine", "verbs.mount:mount", (0, -1),
    (Flag("--options", "ro uid= gid= umask= inodes= cache=DIR cache_size= strict allow_other", "-o", "LIST"),
     Flag("--background", "return once it is mounted"), Flag("--log", "with --background: its log", "", "FILE"),
     Flag("--status", "what is mounted here, and what waits to be committed")), False,
    ("mount /lab /mnt/lab", "mount -o ro,allow_other --background /lab /mnt/lab", "mount --status"),
)  # fmt: skip
UMOUNT = Verb(
    "umount", "[-z] <directory> [<directory> ...]", "end a mount; return once all is committed",
    "verbs.mount:umount", (1, -1), (Flag("--lazy", "detach now; the mount ends with its last user", "-z"),), False,
    ("umount /mnt/lab",),
)  # fmt: skip
CREDENTIALS = Verb(
    "credentialsDelegation", "", "delegate a credential to the Bartender", f"{_ABOUT}:delegation", (0, 0)
)
REMOVE_CREDENTIALS = Verb("removeCredentials", "", "remove a delegated credential", f"{_ABOUT}:removal", (0, 0))
SETUP = Verb(
    "setup", "[--default] [--replicas N] [<name>]",
    "save, under a name, the address of a cluster and your credential for it", "verbs.setup:setup", (0, 1),
    (Flag("--default", "use it where no other is named"), REPLICAS), False,
    ("setup physics --bartender https://bart.example.org:60000/Bartender", "--cluster physics ls /", "setup"),
)  # fmt: skip
DOCTOR = Verb(
    "doctor", "", "check certificates, clock and Bartenders, and name the cure of each problem", "verbs.doctor:doctor",
    (0, 0), (), False, ("doctor", "doctor --json"),
)  # fmt: skip
WHOAMI = Verb(
    "whoami", "", "which credential, CAs and Bartenders are used, and why", "verbs.doctor:whoami", (0, 0), (), False,
    ("whoami",),
)  # fmt: skip
NARROWING = (
    Flag("--only", "s3: narrow the key to read, upload (read and add) or write (all but rights)", "", "WHAT"),
    Flag("--in", "s3: narrow the key to a bucket, or another collection", "", "LN"),
)
ADMIN = Verb(
    "admin", "status | top [--for 2m] | heal status [--watch] | heal pause | heal resume | "
    "heal rate [<bytes/s>] [--copies N] | "
    "drill silence [<id>] [--for 2m] | drill corrupt [<id>] | drill status | drill stop | "
    "node list | node maintenance <id> [--for 2h] [--end] | node drain <id> [--wait] | "
    "node undrain <id> | node forget <id> [--accept-loss] | rebuild [--late <id>] | service list | "
    "service approve|withdraw <id> [<DN>] | node approve|withdraw <id> [<DN>] | fsck [--repair] [<LN>] | "
    "ahash status | ahash backup <name> | ahash add <DN> <host:port> | ahash remove <id> | "
    "ahash replace <id> <DN> <host:port> | jobs | "
    "scrub [--node <id>] [--path <LN> [-r]] [--older-than 7d] [--suspicion] | quarantine list [<id>] | "
    "quarantine discard <id> <reference>...|all | quarantine readmit <id> | "
    "s3 key create <DN> [--for TIME] [--only WHAT] [--in LN] [--note TEXT] | s3 key list | s3 key revoke <id> | "
    "quota set <DN>|<LN>|default [--bytes SIZE] [--files N] | quota list | quota remove <DN>|<LN>|default | "
    "quota recount",
    "for administrators: health, nodes, approvals, planned absence, checks of the metadata", f"{_ADMIN}:admin", (1, -1),
    (Flag("--for", "how long: 90s, 30m, 2h, 3d", "", "TIME"), Flag("--end", "the absence is over"),
     Flag("--watch", "heal status: look until all is whole"),
     Flag("--copies", "heal rate: repair copies one node sends, and takes, at once", "", "N"),
     Flag("--within", "drill: how soon all has to be whole again, 5m by default", "", "TIME"),
     Flag("--files", "drill: files that may be exposed, 1000 by default; quota: files, like 100k, or none", "", "N"),
     Flag("--bytes", "quota: bytes, like 500M or 10G, or none", "", "SIZE"),
     Flag("--one-left", "drill: files that may be left with one copy, 0 by default", "", "N"),
     Flag("--curve", "drill: write the recovery curve to FILE.csv, .json or .svg (may be repeated)", "", "FILE"),
     Flag("--dry-run", "drill: only report whether it may begin"), Flag("--yes", "drill, node forget: do not ask"),
     Flag("--wait", "return when the drained node may go"),
     Flag("--accept-loss", "give up files of which the forgotten node has the only copy"),
     Flag("--late", "rebuild: bring in what this Shepherd alone knows, which was away then", "", "ID"),
     Flag("--repair", "repair what fsck finds and is safe to repair"),
     Flag("--node", "scrub this Shepherd only", "", "ID"), Flag("--path", "scrub the copies of this file", "", "LN"),
     RECURSIVE, Flag("--older-than", "scrub what was last checked longer ago: 90s, 30m, 2h, 3d", "", "TIME"),
     Flag("--suspicion", "scrub what is damaged or doubted"), *NARROWING,
     Flag("--note", "s3: what the key is for", "", "TEXT")),
    False,
    ("admin status", "admin node list", "admin node maintenance https://se1:60000/Shepherd --for 2h",
     "admin node drain https://se1:60000/Shepherd --wait", "admin node forget https://se1:60000/Shepherd",
     "admin drill silence --for 2m --curve curve.svg", "admin fsck --repair", "admin ahash status",
     "admin quota set default --bytes 100G"),
)  # fmt: skip
S3 = Verb(
    "s3", "key create [--for TIME] [--only WHAT] [--in LN] [--note TEXT] | key list | key revoke <id> | "
    "configure [--endpoint URL] [<tool>]",
    "access keys for programs that speak S3, and how to set those up (aws boto3 rclone s3cmd s5cmd)", "verbs.s3:s3",
    (1, -1),
    (Flag("--for", "validity of the key: 90s, 30m, 2h, 3d; without it the key never expires", "", "TIME"),
     *NARROWING, Flag("--note", "what the key is for", "", "TEXT"),
     Flag("--endpoint", "where the S3 door is", "", "URL")), False,
    ("s3 key create --for 90d --note laptop", "s3 key create --only read --in /lab", "s3 key list",
     "s3 configure rclone"),
)  # fmt: skip
COMPLETION = Verb(
    "completion", "bash | zsh", "print the shell's completion", f"{_ABOUT}:completion", (1, -1), (), True,
    ("completion bash > ~/.local/share/bash-completion/completions/chelonia",),
)  # fmt: skip
VERSION = Verb("version", "", "print the version", f"{_ABOUT}:version", (0, 0))
HELP = Verb(
    "help", "[<verb> [<topic> ...]]", "how to use a verb", "cli:help_", (0, -1), (), False,
    ("help put", "help admin quota"),
)  # fmt: skip

VERBS: tuple[Verb, ...] = (
    LS, LIST, STAT, TREE, FIND, DU, QUOTA, WATCH, DIFF, MAKE_COLLECTION, UNMAKE_COLLECTION, PUT, GET, SYNC, CP, CAT, MV,
    MOVE, LN, RM, DELETE, UNDELETE, UNLINK, SHARE, MODIFY, POLICY, MOUNT, UMOUNT, MAKE_MOUNT, UNMAKE_MOUNT, CREDENTIALS,
    REMOVE_CREDENTIALS, WHOAMI, SETUP, DOCTOR, S3, ADMIN, COMPLETION, VERSION, HELP,
)  # fmt: skip
"""In the order in which `help` shows them."""
