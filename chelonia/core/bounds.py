"""Every limit of the system, with its unit and its reason. One place, so that nothing is unbounded by accident.

Names end in their unit. Raising one is a decision: read the reason first.
"""

from __future__ import annotations

from typing import Final

# --- names and metadata ---
NAME_BYTES_MAX: Final = 255
"""One path component in UTF-8: the limit of every file system that will ever mount this."""
LN_DEPTH_MAX: Final = 256
"""Components of a Logical Name: bounds one walk."""
LN_BYTES_MAX: Final = 16 * 1024
"""Whole Logical Name: larger than any kernel's PATH_MAX, small enough to log."""
SECTION_WHOLE_MAX: Final = 1000
"""Properties of a wide section answered whole by the old operations; beyond it they name the paged way."""
PAGE_ENTRIES_MAX: Final = 1000
"""Entries of one ordered page: about 100 KiB of XML."""
BELOW_ENTRIES_MAX: Final = PAGE_ENTRIES_MAX + 1
"""Entries of one page of a walk: a door asks for one more than it shows, to learn whether there are more."""
VALUE_BYTES_MAX: Final = 64 * 1024
"""One metadata value."""
PROPERTY_BYTES_MAX: Final = 2048
"""One property name (a location string holds two URLs' worth)."""
OBJECT_PROPERTIES_MAX: Final = 10_000
"""Properties in an object's narrow sections: the header record stays under a few MiB."""
OBJECT_BYTES_MAX: Final = 4 * 1024 * 1024
"""An object's header record: it is read and written whole."""
DELETE_WIDE_MAX: Final = 1000
"""Properties in wide sections that the deletes of one transact may remove; larger sections are emptied by page."""
TIME_S_MAX: Final = 18_446_744_072
"""The latest time of an entry, in the year 2554: its nanoseconds are 64 bits wherever they travel."""
USER_METADATA_MAX: Final = 1000
"""Triples a user may send with one entry, and properties of users that it may have."""
USER_METADATA_BYTES_MAX: Final = 128 * 1024
"""Properties and values of one entry that users wrote: a listing or a bulk stat carries a thousand entries."""
SYMLINK_BYTES_MAX: Final = 4095
"""The text of a symbolic link: Linux's PATH_MAX without its NUL."""
FILE_BYTES_MAX: Final = 2**63 - 1
"""One file, holes counted: the largest offset of POSIX."""
CONTENT_EXTENTS_MAX: Final = 10_000
"""Extents of one file: S3's number of parts. A reader finds any of them with one seek."""
SPLICE_EXTENTS_MAX: Final = 500
"""Extents laid over a file, and covered by them, in one transact: each costs some two elements of it."""
SPLICE_BLOBS_MAX: Final = 64
"""Blobs that come with one splice: each makes some 25 elements of its transact."""
PLACED_SPANS_MAX: Final = 32
"""Spans of a file in the place of a piece, which is text in its record and its metadata. With more it has no place."""
MARK_CHARACTERS_MAX: Final = 64
"""The word that names the pieces of one splice: as long as a SHA-256, twice as long as a request key."""
PARTS_MAX: Final = 10_000
"""Parts of one upload, and the highest part number: S3's. Each becomes an extent."""
PARTS_PAGE: Final = 900
"""Parts that become extents in one transact: each takes two elements of it."""
BLOB_OWNERS_MAX: Final = 256
"""Files and contents that share one blob: every read of the blob's object reads them. Beyond it bytes are copied."""
COPY_PAGE: Final = 450
"""Extents of a copy by reference in one transact: each takes at most four elements of it."""
COPY_OPEN_MS: Final = 3_600_000
"""Time for a copy of many extents; after it, an unfinished copy is removed."""
UPLOAD_USER_METADATA_MAX: Final = 500
"""Properties that an upload in parts keeps for its file: they leave the upload in the transact that seals it."""
UPLOAD_OPEN_MS: Final = 7 * 24 * 3_600_000
"""Time that an upload in parts may stay open: an abandoned one is removed after a week."""
INLINE_BYTES_MAX: Final = 64 * 1024
"""Bytes of one file in the message about it. Beyond it, their own connection costs less than a copy in each queue."""
INLINE_CALL_BYTES_MAX: Final = 1024 * 1024
"""Bytes of files in one answer to a user, as many as a call of his may bring; he reads the rest from its sources."""
STORED_CALL_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of small replicas in one call to a Shepherd: half of what a call may have."""
SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""A full segment of small replicas: 8 000 to 16 000 of a few KiB, a moment's reading."""
SEGMENTS_OPEN_MAX: Final = 64
"""Segments that a Shepherd keeps open; it opens others when it reads them."""
SEGMENT_MOVED_BYTES: Final = 1024 * 1024
"""Bytes moved out of a segment at once, while erasures wait."""
SEGMENT_LIVE_SHARE: Final = 4
"""A segment with only one part in so many left is emptied: the Shepherd moves its live replicas to the newest."""
MEASURED_EXTENTS_MAX: Final = 1000
"""Extents over which a checksum is combined: a Shepherd answers for as many in one call."""
EXTENTS_PAGE: Final = 32
"""Extents in one answer: each names its Shepherds, and may bring tickets."""
BLOBS_SHOWN: Final = 16
"""Blobs of a file of many whose places its `locations` show; `extents` has those of all."""
BLOBS_PAGE: Final = 50
"""Blobs of a discarded content released in one transact, each with all its replicas."""
PARENTS_MAX: Final = 1000
"""Hard links of one entry: its `parents` are in the header record."""
LOCKS_PER_ENTRY_MAX: Final = 32
"""Write locks of one entry: they are in the header record, and every change reads them."""
LOCK_MS_MAX: Final = 3_600_000
"""A lock that nobody refreshes: a client that has left blocks others no longer than this."""
LOCK_NOTE_BYTES_MAX: Final = 1024
"""The owner's description of himself in a lock: a name and an address."""
LOCKED_BELOW_MAX: Final = 2000
"""Entries below a collection that is locked as a whole: each is checked for locks of its own."""

# --- XML and HTTP ---
SOAP_BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""One SOAP message: 1 000 entries with metadata fit."""
SOAP_BODY_MS: Final = 60_000
"""From the first to the last byte of one SOAP message: its bytes stay in memory as they arrive."""
SOAP_SMALL_BYTES: Final = 64 * 1024
"""A SOAP message up to this size needs no room among the large ones."""
SOAP_LARGE_BODIES_MAX: Final = 32
"""Larger SOAP messages of one service in memory at once: 256 MiB. Approved services may have as many again."""
SOAP_LARGE_BODIES_PER_OWNER_MAX: Final = 2
"""Of these, those of one user, or of a stranger's address: one on its way while another is answered."""
SOAP_LARGE_SHOW_MS: Final = 1_000
"""Time for which a large message arrives before it may be dropped, as the slowest, to make room for another."""
SOAP_DECODED_AT_ONCE_BYTES: Final = 1024 * 1024
"""A larger SOAP message is decoded in a thread: 8 MiB cost half a second, longer than the A-Hash's lease."""
SOAP_STRANGER_PAUSE_MS: Final = 2
"""Pause between two decoded SOAP messages without a certificate, at one service."""
XML_DEPTH_MAX: Final = 32
"""Nesting of elements; the deepest message of ours has 9."""
XML_ELEMENTS_MAX: Final = 200_000
"""Elements of one message: bounds what parsing can cost."""
XML_ATTRIBUTES_MAX: Final = 20_000
"""Attributes of one message: ours have one for each escaped text, those of tools a few an element."""
XML_NAMESPACE_BYTES_MAX: Final = 1024
"""One namespace: a short text for its prefix, and a parser copies it for each element whose name is read."""
XML_ESCAPED_BYTES_MAX: Final = 6 * VALUE_BYTES_MAX
"""One text with escapes, before they are undone: the largest value, each character as `\\uXXXX`."""
BULK_ELEMENTS_MAX: Final = 1000
"""Request elements of one call."""
REMOVED_TOGETHER_MAX: Final = 64
"""Names of one call removed in one transact: some 5 ms of a processor, and a third of a transact's elements."""
LOOKED_TOGETHER_MAX: Final = 64
"""Names of one call looked up together: some 5 ms of a processor, in two turns of the event loop."""
LINKED_MAX: Final = 16
"""Objects read along with the end of one walk: the blobs of all but the longest files, which take a second call."""
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes read for one page of a listing, about: a page of large entries ends early."""
BELOW_SCANS_MAX: Final = 3_000
"""Seeks for one page of a walk below a collection: some 30 ms in which no commit is seen; then the page ends early."""
READ_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes that one listing call may read, whether it shows them or not: some 0.3 s of a processor."""
ELEMENTS_AT_WORK_MAX: Final = 256
"""Elements of users' calls that a Bartender works on at once: they fill commit batches. Then callers take turns."""
ELEMENTS_WAITING_MAX: Final = 2_000
"""Elements of one caller that may wait for a turn: two full calls. Further ones get `busy`."""
TURN_WAIT_MS_MAX: Final = 30_000
"""Wait of an element for its turn before it gets `busy`: half the time that clients' libraries wait for an answer.
Another front end may have room."""
LISTS_PER_CALLER_MAX: Final = 2
"""Listing calls of one caller at work at once; further ones wait."""
LISTS_SIDE_BY_SIDE_MAX: Final = 4
"""Elements of one listing call at work at once: each may hold a page."""
POLICY_RULES_MAX: Final = 100
"""Rules of one policy: each entry shown is checked against them. Larger older ones stay, and may only shrink."""
FILTER_MAX: Final = 100
"""Needed metadata elements of one listing: each is searched for in every entry."""
HTTP_HEADER_BYTES_MAX: Final = 32 * 1024
"""Request line and header fields: `RANGES_MAX` ranges in a file of 99 TB, beside a TURL with its ticket."""
ANSWER_FIELD_BYTES_MAX: Final = 132 * 1024
"""One header field of an answer: `RECEIPTS_MAX` receipts of 4 096 characters, and commas."""
HTTP_BODY_IDLE_MS: Final = 600_000
"""Idle time of a body before its client is cut off. A tape, a person or a job that feeds the client may pause. An
attacker could hold a connection by a trickle anyhow, and has only his share of them."""
HTTP_BODY_RATE_BYTES_PER_S_MIN: Final = 64
"""Least average rate of a body over `HTTP_BODY_IDLE_MS` of waiting for it; below it, it is cut off as an attack."""
HTTP_SEND_IDLE_MS: Final = 600_000
"""Time without a byte taken of an answer before its client is cut off. The consumer behind it may pause, as above."""
CONNECTIONS_MAX: Final = 2000
"""Open connections of one listener: about 50 KiB each under TLS."""
CONNECTIONS_RESERVED: Final = 200
"""Of these, kept for approved services and administrators: strangers and users cannot shut them out."""
CONNECTIONS_PER_ADDRESS_MAX: Final = 64
"""Of one address without a certificate (of IPv6: one network of 64 bits): more than a browser or a host needs."""
CONNECTIONS_PER_DN_MAX: Final = 256
"""Of one user: the pool of one client; jobs on many hosts that run under one DN take turns beyond it."""
HANDSHAKES_PER_ADDRESS_MAX: Final = 1000
"""Connections of one address that are still in the handshake: so many jobs of a site behind it may begin at once."""
UNASKED_BYTES: Final = 32 * 1024
"""Bytes read from a connection in one step of the event loop, until a door asks for a long body. With 256 KiB, a step
under attack took 2 ms, and every user's call waited for it."""
REFUSED_PIECE_BYTES: Final = 64 * 1024
"""Bytes read at once of a refused body, so that its sender gets to see the refusal."""
REFUSED_PAUSE_MS: Final = 2
"""Pause between two such pieces, of all connections of a listener: 32 MB/s."""
DOOR_STILL_MS: Final = 800
"""Time without a turn of a front end's event loop. Then users' connections are cut, and new ones refused, so that a
client has asked another front end within a second."""
FIRST_REQUEST_MS: Final = 5_000
"""From the TLS handshake to the end of the first request's head, for all but approved services."""
RANGES_MAX: Final = 1024
"""Byte ranges of one GET: a basket group of a ROOT file asks for some hundreds."""

COMPACT_CALLS_MAX: Final = 512
"""Calls of one service connection in flight at once in the compact encoding; beyond it the connection is not read."""
COMPACT_STRANGER_BYTES_MAX: Final = 64 * 1024
"""One call in the compact encoding from a peer without a role and a name, or where users may call nothing."""
COMPACT_USER_BYTES_MAX: Final = 1024 * 1024
"""One call in the compact encoding from a user: a thousand names fit."""
COMPACT_USER_CALLS_MAX: Final = 64
"""Calls of one user's connection in flight at once; beyond it the connection is not read."""

ACCESS_KEYS_MAX: Final = 10_000
"""Access keys of a cluster, share links among them: a listing reads all of them."""
ACCESS_KEYS_PER_DN_MAX: Final = 1_000
"""Of these, those of one user: ten must work together to shut others out."""
QUOTAS_MAX: Final = 10_000
"""Quotas of a cluster: each Librarian keeps all in memory, and one answer lists all."""
QUOTAS_RECOUNTED: Final = 200
"""Quotas whose recount one transact starts or ends."""
QUOTA_FILE_BYTES_MAX: Final = 2**50
"""Most that one file counts towards a quota: holes cost nothing, and no counter holds many files of 2^63 bytes."""
QUOTA_DN_BYTES_MAX: Final = 2_000
"""A DN that has a quota: it is part of a property's name."""
ACCESS_KEYS_KNOWN_MAX: Final = 10_000
"""Access keys that a front end remembers, ids that no key has among them."""
ACCESS_KEY_CACHE_MS: Final = 5_000
"""Time for which a front end trusts its last read of an access key: a revoked key works no longer than this."""

# --- A-Hash ---
TRANSACT_ELEMENTS_MAX: Final = 2000
"""Elements of one transact: a transaction's locks stay far under the environment's limit."""
CACHE_BYTES: Final = 128 * 1024 * 1024
"""Page cache of a store without a configured one: every host has so much."""
CACHE_BYTES_MIN: Final = 16 * 1024 * 1024
"""The smallest page cache: it holds the pages of one large batch, else the batch would write some to make room."""
CACHE_BYTES_MAX: Final = 1 << 40
"""The largest page cache: more than hosts have, so that a mistyped size exceeds it."""
COMMIT_BATCH_MAX: Final = 256
"""Requests sharing one transaction and one fsync."""
COMMIT_BATCH_ELEMENTS_MAX: Final = 5000
"""Elements sharing one transaction: its page locks stay far under the environment's limit."""
COMMIT_QUEUE_MAX: Final = 4096
"""Requests waiting for the committer; beyond it callers get a retryable error."""
REQUEST_KEY_KEEP_MS: Final = 15 * 60 * 1000
"""Time for which a request's outcome is remembered (promised: 10 minutes)."""
REPLICA_FRAMES_QUEUED_MAX: Final = 50_000
"""Engine frames of other replicas that wait for the replication thread; more are dropped and requested again."""
REPLICA_FRAME_BYTES_QUEUED_MAX: Final = 256 * 1024 * 1024
"""Bytes of these frames: four of the largest messages."""
REPLICA_FRAMES_PER_FLUSH_MAX: Final = 1000
"""Engine frames applied before a follower syncs its log and acknowledges, so that it does so in an endless stream."""
REPLICA_FRAMES_PER_TURN_MAX: Final = 500
"""Engine frames sent in one turn of the event loop, some ms. A replica that fills up needs tens of thousands: at once,
they would stop a busy master's heartbeats for longer than its lease."""
REPLICA_BUNDLE_BYTES: Final = 64 * 1024
"""Log records of a commit travel together; after so many bytes the first ones leave while the rest is written."""
FORWARDED_MAX: Final = 4096
"""Calls that one A-Hash replica forwards to the master, or carries out for another, at once."""
MEMO_BYTES_MAX: Final = 4096
"""The caller's own note kept with a request's outcome."""

# --- replication ---
REPLICAS_MAX: Final = 15
"""Members of one A-Hash group, learners included: every commit travels to each of them from one master."""
HELD_FRAMES_MAX: Final = 4096
"""Engine frames held back from a peer that may not be followed yet; lost ones are requested again."""
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of these frames."""
ROUND_TRIP_MS: Final = 100
"""Largest round trip between replicas, unless a group configures another: leases are made for it."""
ROUND_TRIP_MS_MAX: Final = 1000
"""Largest that a group may configure: no two places on earth are farther apart, and a dead master is missed later."""
LEASE_STRETCH_MAX: Final = 4
"""Longest lease, in usual ones, while processes wait for a processor again and again. It delays the next election."""
LATENESSES_KEPT: Final = 64
"""Latest delays that decide how long a lease is: one a lease."""
ELECTION_REST_MS_MAX: Final = 800
"""Longest random rest of a candidate after elections and terms that came to nothing."""
TERMS_REMEMBERED_MAX: Final = 100
"""Earlier terms that a log names, each with its last commit. A replica that missed no more terms than this can tell
whether a log continues from what it knows to be acknowledged."""
PEER_HELLO_BYTES_MAX: Final = 1024
"""The first message of a peer: its identity."""
PEER_QUEUE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes that wait for one peer: two of the largest messages. Beyond it the link is closed."""
PEER_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One message between replicas: a log record of the largest transaction, or a forwarded call with its answer."""

# --- bytes ---
UPLOADS_OPEN_MAX: Final = 20_000
"""Uploads of one Shepherd that have a ticket and are not stored: so many that have begun or reserved space, and as
many idle ones. The earliest idle ones are forgotten. Each upload may become a file of its own, and none is free."""
UPLOADS_OPEN_PER_OWNER_MAX: Final = 2_000
"""Of these, those of one owner: ten must work together to shut others out."""
PROMISED_SHARE_PER_OWNER: Final = 0.5
"""Share of a disk's free space that one owner's running uploads keep; beyond it they yield to smaller ones."""
UPLOADS_REMEMBERED_MAX: Final = 20_000
"""Complete uploads of one Shepherd whose sender may repeat them, some 2 KiB each. The Shepherd refuses the ticket of
an earlier one, and its sender starts anew."""
CHUNK_BYTES: Final = 1024 * 1024
"""Read and write unit of bulk data."""
CHECKED_BLOCK_BYTES: Final = 64 * 1024
"""Block with a CRC of its own: a read of part of a replica verifies its blocks."""
BLOCK_CRCS_KEPT_BYTES: Final = 4 * CHUNK_BYTES
"""CRCs of recently read replicas that a Shepherd keeps in memory: those of 64 GiB."""
READ_HELD_BYTES: Final = 8 * CHUNK_BYTES
"""Last bytes of a streamed read, held until all are verified: a smaller file can be read on from another replica."""
READ_HELD_AT_DOORS_BYTES: Final = 256 * 1024
"""The same at doors and mounts, which read for many at once."""
KEPT_AT_DOORS_BYTES: Final = 8 * CHUNK_BYTES
"""Largest body that a door keeps to send it anew when its Shepherd fails: a part as clients cut them."""
KEPT_AT_DOORS_BYTES_MAX: Final = 64 * CHUNK_BYTES
"""All of these of one process. A body that finds no room is not kept, and its client has to send it again."""
WRONG_REPLICAS_KEPT: Final = 1000
"""Replicas that gave wrong bytes, which a node tries last."""
COPY_ANSWER_MS: Final = 365 * 24 * 3_600_000
"""Wait for a Shepherd that makes copies, in effect for ever: its caller watches that it lives, and a claim ends."""
DISK_STILL_MS: Final = 20_000
"""Longest call to a disk before it counts as not answering: twice a crowded disk's sync of a large file. The kernel
gives up a command later, after 30 s."""
TICKET_BYTES_MAX: Final = 4096
"""A ticket in a TURL."""
REPLICAS_DEFAULT: Final = 3
"""Copies of a file when nobody says how many: the original's default."""
REPLICAS_WANTED_MAX: Final = 32
"""Copies of one file a user may ask for."""
RECEIPTS_MAX: Final = 32
"""Receipts in one commit."""

# --- healing ---
DRILL_TRIES: Final = 10
"""Copies that a drill tries until it finds one whose fellow copies prove their bytes."""
SCRUB_PAGE_MS: Final = 1000
"""About how long one call of a requested scrub reads: short enough for a progress bar, long enough to cost little."""
READMITTED_MAX: Final = 1000
"""Replicas brought back from quarantine at once: each is read whole first."""
STORES_REPLACED_KEPT: Final = 8
"""Earlier stores of a Shepherd whose late heartbeats are recognised: each is a disk that a person has replaced."""
DOMAIN_CHARACTERS_MAX: Final = 255
"""A failure domain, site/rack/...: the choice of Shepherds goes down the tree of all, one call for each component."""
BOOTS_KEPT: Final = 8
"""Earlier boots that a Shepherd's heartbeat names: more starts within one lease wait until the lease ends."""
REPORT_ENTRIES_MAX: Final = 500
"""Replica changes in one report: with two changes each it stays one small transaction."""
REFERENCES_PAGE: Final = 500
"""References read at once in a pass over all replicas of a Shepherd: one call reads their blobs."""
LOSS_NAMES_BYTES_MAX: Final = 256 * 1024
"""Names of files that would be lost, in one page of forgetting; the last hundred may exceed it, by 16 KiB each."""
COPIES_IN_FLIGHT_PER_NODE_MAX: Final = 16
"""Concurrent repair copies that one Shepherd sends, and as many that it takes, whatever administrators set."""
COPY_BYTES_PER_S_MIN: Final = 320_000
"""Least rate that a Shepherd may be configured to send and to take repair copies at: twice what so many at once need.
Slower than `claim_bytes_per_s_min` of the Librarians, 10 kB/s, a copy counts as standing still."""
ARRIVING_MAX: Final = 100
"""Arriving copies that one heartbeat names: more than a Shepherd takes at once."""
HEAL_QUEUE_MAX: Final = 5_000
"""Blobs of lost Shepherds that wait for a copy at once, a KiB each; a round finds the others again page by page."""
HEAL_QUEUE_SHOWN: Final = 20
"""Blobs of the queue that are shown: a screenful."""
LOST_NAMES_SHOWN: Final = 20
"""Lost files that the state of healing names: a screenful; `fsck` names all, page by page."""
DRAIN_EXAMPLES_SHOWN: Final = 3
"""Blobs named of those that block a drain: enough to see what they are."""
PROOF_BYTES_MAX: Final = 64 * 1024
"""Bytes that a Shepherd reads of a replica to prove that it has it: a handful of disk reads."""
PROOF_SPANS: Final = 4
"""Pieces of a larger replica that a proof reads, at places nobody can guess."""
PROOF_QUESTIONS_MAX: Final = 100
"""Replicas that one call asks a Shepherd to prove: some 6 MB to read."""
DRILL_MS_MAX: Final = 3_600_000
"""Longest silence of a Shepherd for a drill, whatever a caller requests."""
DRILL_FILES_MAX: Final = 10_000
"""Blobs that a drill may expose, whatever a caller requests: the repair leader checks all of them every tick."""
DRILL_LOOKS_MAX: Final = 100
"""Samples of a drill's recovery curve that are stored: when they are full, every second one is dropped."""
ERASURES_PER_CALL_MAX: Final = 200
"""Erasures handed to a Shepherd in one call."""
ERASURES_UNASKED_PER_MIN_MAX: Final = 1000
"""Trims per minute without a user's deletion behind them; beyond it trimming stops and alarms."""

# --- background jobs ---
JOB_PAUSE_MS: Final = 1_000
"""Pause of a job after a step that ended with an unexpected error; it doubles with each in a row."""
JOB_PAUSE_MS_MAX: Final = 60_000
"""The longest such pause: a mended job goes on within a minute, and the log is not filled."""

# --- snapshots ---
SNAPSHOT_SEGMENT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one segment of a namespace snapshot, about: it is held in memory while it is written and read."""
SNAPSHOT_INFLATED_BYTES_MAX: Final = 256 * 1024 * 1024
"""A page or manifest when inflated: a manifest of a hundred million objects fits."""
SNAPSHOT_BLOB_BYTES_MAX: Final = 256 * 1024 * 1024
"""A blob of a snapshot as a rebuild reads it into memory."""
SNAPSHOTS_KEPT: Final = 3
"""Snapshots that can be read back: one that was damaged or torn does not cost the namespace."""
SNAPSHOT_LIVE_SHARE_MIN: Final = 0.5
"""Least share of a segment's bytes still in use for a new snapshot to refer to it; else its pages are written anew."""
