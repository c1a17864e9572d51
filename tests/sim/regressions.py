"""Seeds that found a bug, oldest first, each with a line about the bug. Every test run runs the newest.

A change to a seed's draws changes the events of its run; a unit test holds the bug itself as well. So the older a seed
is, the less it is worth: `make test ARGS="-m long"` runs all.
"""

from __future__ import annotations

REGRESSIONS: tuple[tuple[str, int, str], ...] = (
    (
        "swarm",
        43,
        "a Shepherd with a replaced disk was turned away by the Librarian that had not heard of it, for good",
    ),
    ("swarm", 59, "the same, by its reports"),
    ("swarm", 41, "a replaced disk in a node whose clock was behind was taken for a message from the past, for ever"),
    ("swarm", 20, "a report of the boot before, late, listed a copy as alive that had been erased since the restart"),
    ("swarm", 20, "after an old disk image was put back, a lost answer hid that nobody knows a committed replica"),
    ("swarm", 37, "a blob deleted through one Librarian was counted as exposed by the other, for ever"),
    ("swarm", 382, "the same: its reports were never taken, so nothing was trimmed for its copies"),
    (
        "swarm",
        211,
        "a copy named by a receipt of the start before, after its disk was put back from an old image and compared, "
        "was never missed, so a surplus copy stayed for ever",
    ),
    (
        "swarm",
        100_144,
        "a repeated unlink was told that there is no such name, because the answer of `recall` was lost",
    ),
    ("swarm", 100_168, "the same with a hard link that the try before a crash had made: it was told that it exists"),
    ("swarm", 100_190, "two replicas of the A-Hash held their elections half a beat apart, each alone, for ever"),
    (
        "swarm",
        45_088,
        "an erasure carried out before a disk was put back from an old image was confirmed after that had been "
        "compared, so a copy stayed that nobody knew",
    ),
    ("swarm", 30_118, "the simulator's own: a new Shepherd of whom nothing was written yet was taken for called away"),
    (
        "swarm",
        1_230_623,
        "the simulator's own: it waited for a damaged copy of a lost file to leave a drained Shepherd",
    ),
    ("swarm", 45_149, "the simulator's own: a disk replaced just before a backup that did not know of it yet"),
    (
        "swarm",
        102_740,
        "the simulator's own: of a deleted file of two names the second was asked for as well, though the file was "
        "back under the first",
    ),
    (
        "swarm",
        37,
        "the simulator's own: what was deleted does not come back while an upload that was given up holds its name",
    ),
    (
        "swarm",
        45_085,
        "a term that had answered and committed nothing was forgotten: what an older master had written alone, and the "
        "newer one had refused, was done after all",
    ),
    ("swarm", 28, "a Shepherd forgotten through one Librarian came back, was taken by the other and given new bytes"),
    (
        "swarm",
        102_595,
        "the simulator's own: an order given before a restore, obeyed by a Shepherd that could not know of it",
    ),
    (
        "swarm",
        61_076,
        "a copy claimed by a Librarian that had not heard that its target was forgotten was to be erased, for ever",
    ),
    (
        "swarm",
        102_644,
        "an upload that a Shepherd had taken before it was forgotten was committed after, and listed there",
    ),
    (
        "swarm",
        1_654,
        "the simulator's own: the repair leader heard a Shepherd, late, before it was forgotten, and wrote so after",
    ),
    ("swarm", 102_609, "the erasures of a forgotten Shepherd were counted for ever"),
    ("swarm", 53, "a Shepherd that stood still was called away after almost two leases"),
    ("swarm", 112, "a late message of a disk that was replaced took the place of the disk after it"),
    (
        "swarm",
        87,
        "a rebuild did without the snapshot of Shepherds that were away, and a second run found its names taken; also "
        "the simulator's own: the only replica with a vote lost its disk before the others had theirs",
    ),
    ("swarm", 161, "a snapshot that had been set aside for being unknown could not be read by the rebuild"),
    ("swarm", 248, "what was set aside amid a rebuild was listed as alive, and could not be read"),
    ("swarm", 1_732, "/lost+found did not know its own name when a rebuild was through"),
    (
        "swarm",
        1_187,
        "the simulator's own: bytes that arrived after all metadata were lost became a file; and "
        "bytes whose upload had begun before others of the file were committed had no name after a rebuild",
    ),
    ("swarm", 3_706, "bytes of putFile that newer ones had replaced were in /lost+found after a rebuild"),
    ("swarm", 72_048, "the simulator's own: an erasure that the disk had in hand when news came of older metadata"),
    ("swarm", 63, "the simulator's own: an upload to a forgotten Shepherd, refused when it was to be committed"),
    ("swarm", 1_347, "the simulator's own: a file overwritten by another user since the snapshot is either's"),
    (
        "swarm",
        70_016,
        "a Shepherd in doubt about a copy said that it had compared while it did, and a comparison that failed ended "
        "its doubt: a copy named by a receipt of before its disk was rolled back was not missed",
    ),
    (
        "slow",
        910_024,
        "a plan came before the renewal of a claim that had run out while the metadata were out of reach: begun anew",
    ),
    ("swarm", 610_175, "an order for a last copy that had been erased before a restore was never closed"),
    (
        "swarm",
        640_122,
        "a Shepherd that compared amid a rebuild believed what gave way to newer bytes before that was through",
    ),
    (
        "swarm",
        200_074,
        "bytes that lay aside were erased by age after a rebuild had named them, before they were asked for",
    ),
    ("swarm", 620_400, "the simulator's own: a repair copy on its way to a Shepherd that was forgotten is swept later"),
    ("swarm", 600_130, "an image from before a confirmed erasure passed for the disk, and the bytes stayed"),
    ("swarm", 610_198, "the simulator's own: the notes of a liar that is mended are not what it has said"),
    (
        "swarm",
        670_828,
        "an image passed for the disk once a start on it had died unaware that its first report was taken",
    ),
    ("swarm", 670_844, "the same"),
    (
        "swarm",
        650_072,
        "the simulator's own: bytes of a deleted file whose time was over, and that no sweep had met yet",
    ),
    (
        "swarm",
        1_100_642,
        "the simulator's own: a rebuild that was through when its process died, before anybody had asked",
    ),
    (
        "swarm",
        1_110_842,
        "the simulator's own: a user asked for a commit until the bytes, given up by then, were erased by age",
    ),
    ("swarm", 670_366, "the simulator's own: a record that rotted when the rebuild had read it"),
    (
        "swarm",
        1_130_974,
        "a rebuild begun again made bytes of the trash nobody's that the one before had given a file in /lost+found",
    ),
    ("swarm", 1_120_399, "the simulator's own: a snapshot for which only one Shepherd had room, and that rotted there"),
    (
        "swarm",
        1_131_066,
        "the simulator's own: metadata that crashed while their disk was full had none with room ever after; and a "
        "rebuild that was not through was asked about for ever",
    ),
    (
        "swarm",
        1_190_109,
        "bytes that gave way to newer ones kept all else out of a rebuild that their Shepherd told on the same page",
    ),
    ("swarm", 1_210_039, "the simulator's own: a snapshot that was stored, and not yet named, when all was lost"),
    (
        "swarm",
        1_230_517,
        "an erasure was confirmed between the reading and the applying of a first report, which told of it as it was "
        "read: an image of the disk from before it passed for the disk, and the bytes stayed",
    ),
    (
        "swarm",
        9_322_067,
        "a Librarian that had just started heard a Shepherd for the first time, forgotten since the registry was read, "
        "counted it as present before and so did not look again: it was given copies",
    ),
    ("swarm", 9_322_010, "the simulator's own: a liar's bytes, erased while the answer to the commit was on its way"),
    (
        "replication",
        9_310_271,
        "a replica whose engine a vote had told of a newer term followed masters of older ones, in vain",
    ),
    (
        "replication",
        9_311_296,
        "the record that ends a change to one voter stood only with who had lost his vote by it: it followed nobody "
        "with less and stood for nothing, so there was no master ever after",
    ),
    (
        "swarm",
        26_120_077,
        "metadata of a backup knew a copy that went with a store; a report told of its loss and of a newer one, which "
        "was refused as one too many and never told again: nobody knew of it, and nobody removed it",
    ),
    (
        "versions",
        93,
        "of two that completed an upload at once with the same parts, one cleared the extents that the other had laid, "
        "and that one sealed a file of no bytes",
    ),
    ("objects", 199, "a file that was replaced under its name while somebody looked at it was told not to be there"),
    (
        "versions",
        9_510_045,
        "who completed an upload began the order of its parts after one of them had been replaced, and laid extents of "
        "bytes that were gone",
    ),
    (
        "versions",
        9_540_185,
        "bytes that an old image of a disk brought back were taken for committed by the word of a Bartender that had "
        "waited for its next call, and stayed though their erasure was confirmed",
    ),
    (
        "objects",
        9_540_261,
        "of two that gave a completed upload its key, as the null version, the second took the one that this had "
        "replaced for what waits, and brought it back: the upload was gone, though both were told that it is done",
    ),
    (
        "swarm",
        9_510_247,
        "a Shepherd that had found a copy damaged while the commit of its upload was repeated dropped that news with "
        "the answer: the copy was listed as alive",
    ),
    (
        "versions",
        9_540_019,
        "the simulator's own: of a copy that rotted with its record a front end was told no checksum, though its "
        "Shepherd knows it",
    ),
    (
        "versions",
        9_540_068,
        "the simulator's own: parts of an upload given up under a clock a day ahead were to come back as its",
    ),
    ("versions", 9_540_121, "as seed 9540261: the null version before came back for what was acknowledged"),
    (
        "versions",
        9_540_036,
        "of two that completed an upload at once, one gave it a newer order, and then the version of that; the other "
        "looked in between, and was told a version that there is not",
    ),
    (
        "objects",
        9_561_001,
        "a conditional PUT was told that there is no such key, and its bytes had it: a removal that crossed had given "
        "what waited its key before it was taken back",
    ),
    (
        "objects",
        9_700_008,
        "an upload opened over a file that was removed became a file of its GUID, at version 1 as that: who had begun "
        "to read the other took it for unchanged, found its extents gone, and was given zeros",
    ),
    (
        "objects",
        9_561_046,
        "who completed an upload again was told no version: that of a null version that was a copy of it",
    ),
    ("objects", 9_700_005, "the same"),
    (
        "objects",
        9_700_158,
        "a listing told the version of a PUT that was under way, which then got a newer order, and a version of that",
    ),
    (
        "versions",
        9_700_085,
        "the simulator's own: `※versions` of a bucket, made since the snapshot that a rebuild used, is made anew for "
        "what was written there; and a run before, whose process died, had told so",
    ),
    (
        "versions",
        9_700_096,
        "the simulator's own: of bytes that a Shepherd tells of late, after a rebuild, there was one copy to tell of",
    ),
    (
        "replication",
        9_700_083,
        "the simulator's own: a disk was lost while a membership without another voter waited in an engine that stood "
        "still: of its two voters one was left",
    ),
    (
        "versions",
        9_510_064,
        "a version that was about to get its key back had it though a PUT and a removal had crossed, was overwritten "
        "before it went back, and stood above both",
    ),
    (
        "versions",
        9_710_140,
        "bytes whose erasure failed were taken for gone: a backup of the metadata that was put back and named them was "
        "told that they are deleted",
    ),
    (
        "copies",
        9_710_132,
        "heartbeats of a start that was over had waited for the metadata, and claimed for a lease that its store takes "
        "the place of another, which a later start had taken by then",
    ),
    (
        "versions",
        9_710_162,
        "a late message that was to give a version its key gave it what had exchanged its place with that",
    ),
    (
        "objects",
        9_711_186,
        "a listing told a delete marker that was taken back, as another had the key, and made anew with another id",
    ),
    (
        "versions",
        9_710_228,
        "the sweep took away extents of a content that a backup of the metadata, put back meanwhile, has sealed",
    ),
    (
        "versions",
        9_600_121,
        "who sent a part was told that he may not: his Bartender had it go to a Shepherd that was forgotten just then",
    ),
    (
        "versions",
        9_720_250,
        "a version was told not to be there: it had had its key just while what is beside that was listed",
    ),
    (
        "objects",
        9_721_145,
        "who completed an upload was told its version, which another had given up whose condition did not hold",
    ),
    (
        "versions",
        9_720_360,
        "the simulator's own: a rebuild found a file's owner in bytes that had gone by when it was looked at",
    ),
    (
        "swarm",
        9_730_107,
        "a heartbeat of a start that was over had waited for the metadata, and took the place of the store that a "
        "later start, whose clock had been set back, had got just then",
    ),
    (
        "versions",
        9_730_089,
        "the simulator's own: of an upload given up a rebuild found one copy that was not swept yet, and had rotted",
    ),
    (
        "versions",
        9_730_242,
        "a copy was tried twice, and what was late of the try that had been refused made a second version of it",
    ),
    ("copies", 8, "a file of several blobs wanted four copies, and its blobs still two"),
    (
        "copies",
        9_802_046,
        "an unlink was told that there is no such name, which was being exchanged with another: both were there",
    ),
    (
        "objects",
        9_811_456,
        "who erased the null version took the one that was about to replace it, and the one before kept the key",
    ),
    (
        "swarm",
        9_811_736,
        "of names removed in one call and one by one, a repeat found that they could go together, and took what stood "
        "under one of them since",
    ),
    (
        "swarm",
        9_811_454,
        "a snapshot was not found after the loss of all metadata: the one Shepherd with its manifest had not heard "
        "that it is named, and kept it aside",
    ),
    (
        "swarm",
        9_811_391,
        "the simulator's own: of a snapshot begun by a clock that was behind, what was deleted before comes back",
    ),
    ("swarm", 9_811_916, "the simulator's own: a drill began before a Librarian had heard of all Shepherds"),
    (
        "copies",
        9_847_377,
        "the simulator's own: a copy was damaged, and told so, before the piece that it is of was named",
    ),
    ("copies", 9_843_674, "a quota that was set while a rebuild was under way did not count what came back"),
    (
        "versions",
        9_855_097,
        "the simulator's own: an old disk, taken in after a rebuild, brought back a snapshot that had been let go of, "
        "with its one copy damaged",
    ),
    (
        "versions",
        9_856_195,
        "a version was given its key again, after a removal that crossed it had been answered: until it went back, it "
        "was read",
    ),
    ("versions", 9_856_188, "the same, and then the listing told another order"),
    (
        "versions",
        9_855_859,
        "the simulator's own: the content of a deleted file, which a snapshot had, came back in /lost+found",
    ),
    (
        "versions",
        9_856_409,
        "the simulator's own: what a group had ordered to be erased was held against older metadata",
    ),
    (
        "versions",
        9_857_685,
        "after metadata were put back, the last copy was called unknown for one that the same report told was gone",
    ),
    (
        "pages",
        87,
        "a file that was removed while a snapshot was taken came back without its content, and could not be removed",
    ),
    ("pages", 12_200_246, "a file whose bytes a snapshot had passed lost its name, as one that was removed meanwhile"),
    ("pages", 13_000_260, "a replica that panicked before it took part went on, and did nothing"),
    ("pages", 12_200_354, "the simulator's own: a page rotted that a change of who has a vote still needed"),
    ("pages", 13_000_573, "the same: of a replica that was about to be given its vote"),
    ("copies", 13_000_228, "the simulator's own: a Bartender that was starting yet was asked for a file"),
    ("copies", 13_000_043, "a file whose content a rebuild had not found could not be deleted, nor overwritten"),
    ("copies", 12_200_240, "the simulator's own: an upload that a full quota had refused came back after a rebuild"),
    ("skew", 87, "the simulator's own: a rebuild of uploads in parts takes longer where every tenth message is lost"),
    ("pages", 21_001_632, "the same: of ten such uploads, of which no snapshot knew a file"),
    (
        "pages",
        12_000_041,
        "the simulator's own: a part that its upload was sealed without came to /lost+found before it was swept",
    ),
    ("swarm", 12_000_065, "the same, where the leader's clock was a day behind"),
    (
        "skew",
        12_100_164,
        "the simulator's own: a part that was sent anew, and damaged, was not counted among those of its number",
    ),
    (
        "replication",
        13_000_326,
        "who heard of a newer election rested before it took part, and was late for it each time: none in 6 s",
    ),
    (
        "swarm",
        12_000_101,
        "a Bartender whose clock had gone back by a day named bytes that were set aside, and nobody missed them",
    ),
    (
        "skew",
        15_100_263,
        "the S3 door answered 403 for a part whose Shepherd had restarted since it gave the place",
    ),
    ("skew", 15_100_477, "an owner's first file that the default quota has no room for met a conflict for ever"),
    ("versions", 15_300_077, "the simulator's own: a version went to its key, and the collection made for it stayed"),
    (
        "versions",
        15_300_570,
        "the simulator's own: a version was listed while it waited for its key, and was refused it",
    ),
    ("versions", 15_300_800, "the simulator's own: rotten bytes that were set aside counted as a good copy"),
    ("skew", 15_101_327, "a completion that came again named a copy of its object, which was being erased meanwhile"),
    (
        "versions",
        15_302_534,
        "a Shepherd that did not answer for a copy committed late started again, told differences, and did not miss it",
    ),
    (
        "versions",
        15_304_482,
        "the simulator's own: of Shepherds that had just proved their copies none counted as heard",
    ),
)
"""(scenario, seed, what it found)."""
