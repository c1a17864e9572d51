"""Faults and changes of real A-Hash daemons under writers: `make replicas ARGS="--daemons"` runs all of them.

Each scenario gets a whole group of three and leaves it whole. `Trial.judge` then compares all disks, record by record,
with the answers that the writers got. Harm to one replica must not disturb the others: `undisturbed` watches the term
and the writers.
"""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import layout
from chelonia.ahash.store.bdb.environment import PAGE_BYTES
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import Needed
from chelonia.core.ports.ahash import ChangeType, Element
from tests.support.ahash_daemons import AHashDaemons, Away, Launch
from tests.support.polling import patience, poll_async
from tests.support.replica_group import Writers, verify

GAP_MS = 4_000
"""Longest wait of a writer while the group is undisturbed on a machine at rest: elections take less."""
ELECTIONS_MAX = 2
"""Terms that a machine at rest may take meanwhile, whatever is done to one replica."""
FAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"
HOUR_S = 3600
DISK = "64m"
ROOMY_DISK = "512m"
OLD = "old"
HELD_MS = 10_000
"""Longer than a replica holds a request for want of a master."""


@dataclass
class Trial:
    """A group of three, and writers of it."""

    group: AHashDaemons
    writers: Writers = field(init=False)
    series: int = 0
    acknowledged: int = 0
    waited_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Fresh writers."""
        self.writers = self.group.writers(first=4 * self.series)
        self.series += 1
        self.writers.start()

    async def judge(self) -> None:
        """Let the writers end, and compare all disks with the answers they got."""
        await self.writers.end()
        self.acknowledged += await verify(self.group, self.writers)
        await self.group.settled()

    async def follower(self) -> int:
        """The last of those that are not master."""
        master = await self.group.settled()
        return max(n for n in self.group.replicas if n != master)


Scenario = Callable[[Trial], Awaitable[None]]


async def begin(root: Path) -> Trial:
    """A whole group of three below `root`, with writers."""
    group = AHashDaemons(root)
    try:
        group.found(1, (1, 2, 3))
        for replica in (2, 3):
            group.configure(replica, (1, 2, 3))
        for replica in (1, 2, 3):
            group.launch(replica)
        group.replicas = (1, 2, 3)
        await group.settled()
        trial = Trial(group)
        await trial.writers.more(20)
    except BaseException:
        await group.close()
        raise
    return trial


@asynccontextmanager
async def undisturbed(trial: Trial) -> AsyncIterator[None]:
    """The others go on meanwhile: no write waits for long, and none of them is elected over and over."""
    master = await trial.group.master()
    term, since = (await trial.group.status(master)).term, time.monotonic()
    yield
    await trial.writers.more(30)
    elections = (await trial.group.status(await trial.group.master())).term - term
    waited = trial.writers.outage_ms(since)
    trial.waited_ms.append(waited)
    times = patience()
    assert elections <= ELECTIONS_MAX * times, f"the group was disturbed: {elections} elections"
    assert waited < GAP_MS * times, f"the group was disturbed: a write waited {waited:.0f} ms"


# --- growing, shrinking, replacing, restoring ------------------------------------------------------------------------


async def grow_and_shrink(root: Path) -> int:
    """One A-Hash alone becomes a group of three, and of two, and is one alone again; writers write. Returns: writes."""
    group = AHashDaemons(root)
    try:
        group.configure(1)
        group.launch(1)
        group.replicas = (1,)
        await group.settled()
        writers = group.writers()
        writers.start()
        await writers.more(30)
        group.configure(1, (1,))
        await _restart(group, 1)
        for replica in (2, 3):
            await group.settled()
            await group.admin("add", group.dn(replica), group.address(replica))
            group.configure(replica, range(1, replica + 1))
            group.launch(replica)
            group.replicas = (*group.replicas, replica)
        await group.settled()
        await writers.more(30)
        for replica in (1, 2):  # the first is master: it goes as well
            await group.admin("remove", str(replica))
            await group.terminate(replica)
            group.replicas = tuple(n for n in group.replicas if n != replica)
            await group.settled()
        await writers.more(30)
        (group.data(3) / "restored").touch()
        group.configure(3)
        await _restart(group, 3)
        await writers.more(30)
        await writers.end()
        return await verify(group, writers)
    finally:
        await group.close()


async def _restart(group: AHashDaemons, replica: int) -> None:
    assert await group.terminate(replica) == 0
    group.launch(replica)


async def lose_a_disk(trial: Trial) -> None:
    """One starts on an empty directory: it is filled while the others go on."""
    group, lost = trial.group, await trial.follower()
    async with undisturbed(trial):
        group.kill(lost)
        shutil.rmtree(group.data(lost))
        group.configure(lost, group.replicas)
        group.launch(lost)
        await group.settled()


async def replace_by_another_host(trial: Trial) -> None:
    """The disk and the host of one are lost. Another takes its place, by one command that is interrupted once."""
    group, lost = trial.group, await trial.follower()
    new = max(group.replicas) + 1
    async with undisturbed(trial):
        group.kill(lost)
        replacing = asyncio.create_task(group.admin("replace", str(lost), group.dn(new), group.address(new)))
        group.configure(new, (*group.replicas, new))
        group.launch(new)
        await replacing
        group.replicas = tuple(sorted({*group.replicas, new} - {lost}))
        await group.settled()
        group.launch(lost)  # it does not know yet that it was removed
        await group.logged(min(group.replicas), f"{group.dn(lost)}: untrusted: this certificate is not that of another")
    group.kill(lost)


async def back_up_and_restore(trial: Trial) -> None:
    """A backup is made under writers, and begins a group anew, with a raised generation; two more are filled by it."""
    group, old = trial.group, trial.group.replicas
    before = {writer: len(turns) for writer, turns in trial.writers.acked.items()}
    name = f"b{time.monotonic_ns()}"
    await group.admin("backup", name)
    await trial.judge()
    generation = (await group.status(old[0])).position.generation
    for replica in old:
        group.kill(replica)
        shutil.rmtree(group.data(replica))
    for replica in old:
        group.configure(replica, old)
    config = group.configure(old[0], old)
    group.cheloniad("restore-ahash", "--config", str(config), "--from", str(group.root / "backups" / name))
    for replica in old:
        group.launch(replica)
    await group.settled()
    assert (await group.status(old[0])).position.generation > generation
    held = await group.records()
    await group.settled()
    assert len({tuple(sorted(records.items())) for records in held.values()}) == 1, "the replicas differ"
    for writer, turns in before.items():
        key = layout.wide_range(ObjectId(f"a{writer}"), "entries")[0]
        kept = sum(record.startswith(key) for record in held[old[0]])
        assert kept >= turns, f"writer {writer}: {turns} writes were acknowledged before the backup, it has {kept}"
    trial.begin()
    await trial.writers.more(30)


async def lose_the_majority(trial: Trial) -> None:
    """The disks of all but one are gone for good: it goes on alone, as the runbook says, and the group grows again."""
    group, left = trial.group, await trial.follower()
    await trial.judge()
    generation = (await group.status(left)).position.generation
    for replica in group.replicas:
        if replica != left:
            group.kill(replica)
            shutil.rmtree(group.data(replica))
    await poll_async(lambda: _refused(group, left), 15, what="reads are refused, as its copy may be old")
    said = await group.admin("status", at=(left,))
    assert f"replica {left} holds generation {generation}, " in said, said
    assert "the newest of those that answer" in said, said
    assert await group.terminate(left) == 0
    await grow_from(group, left, generation, AHashDaemons.records_of(group.data(left)))
    trial.begin()
    await trial.writers.more(30)


async def grow_from(group: AHashDaemons, one: int, generation: int, held: dict[bytes, bytes]) -> None:
    """Go on with what one of them holds: alone as a new generation, the others filled from it."""
    (group.data(one) / "restored").touch()
    group.configure(one, (one,))
    group.launch(one)
    group.replicas = (one,)
    await group.settled()
    assert (await group.status(one)).position.generation > generation
    for new in (one + 1, one + 2):
        shutil.rmtree(group.data(new), ignore_errors=True)
        said = await group.admin("add", group.dn(new), group.address(new))
        assert f"replica_id = {new}," in said, said
        group.configure(new, (*group.replicas, new))
        group.launch(new)
        group.replicas = (*group.replicas, new)
        await group.settled()
    for replica, records in (await group.records()).items():
        lost = missed(held, records)
        assert not lost, f"replica {replica} has not what the one that was left had: {lost[:5]}"
    await group.settled()


def missed(held: dict[bytes, bytes], found: dict[bytes, bytes]) -> list[bytes]:
    """The records that are not found as they were held."""
    return sorted(key for key in held if not key.startswith(b"M") and found.get(key) != held[key])


async def _refused(group: AHashDaemons, replica: int) -> bool:
    """Whether a read is refused for want of a master."""
    try:
        await group.ahash(replica, HELD_MS).get(Call(), (ObjectId("c0"),))
    except CheloniaError as error:
        return error.kind is Kind.UNAVAILABLE and "there is no master now" in str(error)
    return False


# --- one replica fails -----------------------------------------------------------------------------------------------


@contextmanager
def clock_of(trial: Trial, *, monotonic: bool) -> Iterator[tuple[Launch, Callable[[str], None]]]:
    """How to start a daemon whose clocks can be set off: its wall clock, or `monotonic` too; and what sets them."""
    [library] = Path("/").glob(FAKETIME[1:]) or [None]
    assert library is not None, "libfaketime is not installed (Debian: libfaketime)"
    path = trial.group.root / "clock"

    def step(offset: str) -> None:
        scratch = path.with_suffix(".new")
        scratch.write_text(offset + "\n")
        scratch.replace(path)

    step("+0s")
    environ = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(path), "FAKETIME_CACHE_DURATION": "1"}
    yield Launch(environ=environ | ({} if monotonic else {"FAKETIME_DONT_FAKE_MONOTONIC": "1"})), step


async def step_the_wall_clock(trial: Trial) -> None:
    """An hour forth changes nothing. An hour back, before its peers' certificates begin, makes it cut itself off."""
    group, victim = trial.group, await trial.follower()
    with clock_of(trial, monotonic=False) as (how, step):
        group.kill(victim)
        group.launch(victim, how)
        await group.settled()
        async with undisturbed(trial):
            step(f"+{HOUR_S}s")
            await asyncio.sleep(12)  # longer than between two looks at certificates
            await group.settled()
            step(f"-{HOUR_S}s")
            await group.logged(victim, "not yet valid")
        step("+0s")
        await group.settled()
        await hand_over_to(trial, victim)
        step(f"-{HOUR_S}s")
        await group.logged(victim, "no majority answers")
        await trial.writers.more(50)
        step("+0s")
        await group.settled()
    group.kill(victim)
    group.launch(victim)


async def step_the_monotonic_clock(trial: Trial) -> None:
    """An hour forth at a follower changes nothing; at the master it ends the lease, and the others elect a master."""
    group, victim = trial.group, await trial.follower()
    with clock_of(trial, monotonic=True) as (how, step):
        group.kill(victim)
        group.launch(victim, how)
        await group.settled()
        async with undisturbed(trial):
            step(f"+{HOUR_S}s")
            await asyncio.sleep(3)
            await group.settled()
        await hand_over_to(trial, victim)
        step(f"+{2 * HOUR_S}s")
        await group.logged(victim, "no majority answers")
        await trial.writers.more(100)
        await group.settled()
    group.kill(victim)
    group.launch(victim)


async def hand_over_to(trial: Trial, wanted: int) -> None:
    """Restart masters until this replica is one."""
    while (master := await trial.group.settled()) != wanted:
        await _restart(trial.group, master)


@asynccontextmanager
async def small_disk(trial: Trial, victim: int, size: str) -> AsyncIterator[Path]:
    """Give one a disk of this size of its own, to be filled anew; afterwards it has the large one again."""
    group, disk = trial.group, trial.group.data(victim)
    group.kill(victim)
    shutil.rmtree(disk)
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
    group.configure(victim, group.replicas)
    try:
        group.launch(victim)
        await group.settled()
        yield disk
        await trial.judge()
        trial.begin()
    finally:
        if victim in group.processes:
            group.kill(victim)
        subprocess.run(["umount", str(disk)], check=True)
    group.launch(victim)
    await group.settled()


async def fill_a_disk(trial: Trial) -> None:
    """The disk of one fills up: it ends, logs why at each start, and is back when there is room."""
    group, victim = trial.group, await trial.follower()
    async with small_disk(trial, victim, DISK) as disk, undisturbed(trial):
        use_up(disk / "filler")
        assert await group.ended(victim, 90) == 1
        await group.logged(victim, "No space left on device")
        for times in (1, 2):
            group.launch(victim)
            assert await group.ended(victim) > 0
            await group.logged(victim, "no-space: no space left on the metadata disk: free some", times=times)
        (disk / "filler").unlink()
        group.launch(victim)
        await group.settled()


async def fill_the_masters_disk(trial: Trial) -> None:
    """The disk of the master is nearly full: another takes over, and changes go on."""
    group, victim = trial.group, await trial.follower()
    async with small_disk(trial, victim, ROOMY_DISK) as disk:
        await hand_over_to(trial, victim)
        async with undisturbed(trial):
            with (disk / "filler").open("wb") as filler:
                os.posix_fallocate(
                    filler.fileno(), 0, shutil.disk_usage(disk).free - AHashSettings().min_free_bytes // 2
                )
            await group.logged(victim, "its disk is nearly full: another takes over")
            await trial.writers.more(100)
            assert await group.settled() != victim
            (disk / "filler").unlink()


def use_up(path: Path) -> None:
    """Write a file until nothing is free."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        while True:
            os.write(handle, bytes(4096))
    except OSError:
        return
    finally:
        os.close(handle)


async def flip_bits(trial: Trial) -> None:
    """Bits of a log, of its end and of pages are flipped: the next start logs all damage it can detect, and is
    mended."""
    for damage in (flip_a_log, flip_the_end, flip_pages):
        victim = await trial.follower()
        await trial.writers.more(200)
        async with undisturbed(trial):
            trial.group.kill(victim)
            damage(trial.group.data(victim) / "db")
            before = told_damage(trial.group, victim)
            trial.group.launch(victim)
            if damage is flip_pages:
                await trial.group.settled()  # filled by the others, without anybody's help
            else:
                await mended(trial, victim)
            assert told_damage(trial.group, victim) > before, f"{damage.__name__} was not told"


def told_damage(group: AHashDaemons, replica: int) -> int:
    """How often a replica has logged that its files are damaged."""
    log = group.log(replica)
    return log.count("start this replica on an empty directory") + log.count("it takes part again when synchronised")


async def mended(trial: Trial, victim: int) -> None:
    """Wait until the others have filled it; where it ends, it starts anew on an empty directory."""
    group = trial.group
    process = group.processes[victim]
    settled = asyncio.create_task(group.settled())
    await poll_async(lambda: settled.done() or process.poll() is not None, 90, what="it ends, or is whole")
    if process.poll() is not None:
        settled.cancel()
        await asyncio.gather(settled, return_exceptions=True)
        assert await group.ended(victim) > 0
        group.data(victim).rename(group.root / f"away{time.monotonic_ns()}")
        group.configure(victim, group.replicas)  # an empty directory knows of no others than its configuration names
        group.launch(victim)
    await group.settled()


def flip_a_log(database: Path) -> None:
    """Flip a bit in the first record of the oldest log."""
    _flip(min(database.glob("log.*")), [200])


def flip_pages(database: Path) -> None:
    """Flip a bit in each page of the tree but the first."""
    size = (database / "store.db").stat().st_size
    _flip(database / "store.db", range(PAGE_BYTES + 4000, size, PAGE_BYTES))


def empty_pages(database: Path) -> None:
    """Make each leaf with old entries all zero."""
    with (database / "store.db").open("r+b") as file:
        data, kind_at, leaf = file.read(), 25, 5
        for at in range(0, len(data), PAGE_BYTES):
            if data[at + kind_at] == leaf and f"{OLD}0".encode() in data[at : at + PAGE_BYTES]:
                file.seek(at)
                file.write(bytes(PAGE_BYTES))


def flip_the_end(database: Path) -> None:
    """Flip a bit in one of the last records of the newest log: recovery takes it for its end.

    Not in the very last ones: a kill may have come before they were vouched for, and then nothing is missing.
    """
    log = max(database.glob("log.*"))
    _flip(log, [len(log.read_bytes().rstrip(b"\0")) - 20_000])


async def flip_pages_at_work(trial: Trial) -> None:
    """Pages that one has not read since its start are damaged while it runs: it ends, and answers nothing from them."""
    group = trial.group
    victim = await _with_old_pages(trial)
    async with undisturbed(trial):
        flip_pages(group.data(victim) / "db")
        told = await _read_all(group, victim)
        assert told < 1000, "what was flipped was in its cache"
        await _filled_anew(group, victim, "Berkeley DB panicked")


async def empty_pages_at_work(trial: Trial) -> None:
    """The same pages are all zero: a search that reaches one loops for ever, until its process ends."""
    group = trial.group
    victim = await _with_old_pages(trial)
    async with undisturbed(trial):
        empty_pages(group.data(victim) / "db")
        with suppress(Away):
            found = await group.ahash(victim).get(Call(), (ObjectId(f"{OLD}0"),), (Needed("entries", "0500"),))
            raise AssertionError(f"what was emptied was in its cache: {found}")
        await _filled_anew(group, victim, "goes round in a search")


async def _with_old_pages(trial: Trial) -> int:
    """A follower, with pages that it has not read since its start."""
    group = trial.group
    for n in range(40):  # the later ones for a checkpoint's sake: recovery reads what the log has after it
        old = tuple(
            Element(ObjectId(f"{OLD}{n}"), ChangeType.SET, "entries", f"{m:04}", "x" * 500) for m in range(1000)
        )
        await group.ahash(await group.master()).change(Call(), old)
    victim = await trial.follower()
    await _restart(group, victim)
    await group.settled()
    return victim


async def _filled_anew(group: AHashDaemons, replica: int, said: str) -> None:
    """Wait until one ends and logs why; its next start logs the damage, and the others fill it."""
    assert await group.ended(replica) > 0
    assert said in group.log(replica)
    before = told_damage(group, replica)
    group.launch(replica)
    await group.settled()
    assert told_damage(group, replica) > before
    assert await _read_all(group, replica) == 1000


async def _read_all(group: AHashDaemons, replica: int) -> int:
    """Read the old entries at one replica; returns how many came, all of them right."""
    told, after = 0, ""
    while True:
        try:
            page = await group.ahash(replica).scan(Call(), ObjectId(f"{OLD}0"), "entries", after, 10)
        except Away:
            return told
        assert all(value == "x" * 500 for _, value in page.items), "it told what is damaged"
        told += len(page.items)
        if not page.more:
            return told
        after = page.items[-1][0]


def _flip(path: Path, offsets: Iterable[int]) -> None:
    """Flip one bit at each place, as a disk would: every process that has the file open sees it."""
    handle = os.open(path, os.O_RDWR)
    try:
        for offset in offsets:
            [byte] = os.pread(handle, 1, offset)
            os.pwrite(handle, bytes([byte ^ 0x10]), offset)
    finally:
        os.close(handle)


# --- directories and identities that are not one's own ---------------------------------------------------------------


async def take_a_directory(trial: Trial) -> None:
    """One is started on another replica's directory, and then under another cluster's name: both are refused. Its own
    works."""
    group, victim = trial.group, await trial.follower()
    other, known = await group.master(), group.replicas
    async with undisturbed(trial):
        group.kill(victim)
        copy = group.root / "copied"
        shutil.copytree(group.data(other), copy)
        for changes in ({"data_dir": str(copy)}, {"tuning": {"cluster": "8e1f7a52-0b7c-4a6e-9b0e-5d5d0c9a2a11"}}):
            group.configure(victim, known, **changes)
            group.launch(victim)
            assert await group.ended(victim) > 0
        assert f"the directory belongs to replica {other}, " in group.log(victim)
        assert f"the directory belongs to replica {victim}, {group.cluster}" in group.log(victim)
        shutil.rmtree(copy)
        empty = group.root / "empty"
        changes = {"data_dir": str(empty), "tuning": {"cluster": "8e1f7a52-0b7c-4a6e-9b0e-5d5d0c9a2a11"}}
        group.configure(victim, known, **changes)
        group.launch(victim)
        await group.logged(min(known), "is refused: it belongs to cluster 8e1f7a52")
        group.kill(victim)
        shutil.rmtree(empty)
        group.configure(victim, known)
        group.launch(victim)
        await group.settled()


async def double_an_identity(trial: Trial) -> None:
    """A copy of a replica, with its certificate, is started beside it: the linked one stays, and the others refuse the
    second."""
    group, victim = trial.group, await trial.follower()
    twin = group.places
    shutil.copytree(group.data(victim), group.data(twin))
    group.configure(victim, group.replicas, data_dir=str(group.data(twin)), replica_listen="127.0.0.2")
    config = group.root / "conf" / f"{twin}.toml"
    shutil.copy(group.root / "conf" / f"{victim}.toml", config)
    config.write_text(config.read_text().replace(f"port = {group.ports[victim]}", f"port = {group.ports[twin]}"))
    group.configure(victim, group.replicas)
    lost = f"lost its link to replica {victim}"
    dialled = [replica for replica in group.replicas if replica < victim]
    before = {replica: group.log(replica).count(lost) for replica in dialled}
    async with undisturbed(trial):
        group.launch(twin)
        for replica in dialled:
            await group.logged(replica, f"is refused: another process is replica {victim} already")
    assert before == {replica: group.log(replica).count(lost) for replica in dialled}, "the one that was linked went"
    group.kill(twin)
    shutil.rmtree(group.data(twin))


SCENARIOS: tuple[Scenario, ...] = (
    lose_a_disk, replace_by_another_host, back_up_and_restore, lose_the_majority, flip_bits, flip_pages_at_work,
    empty_pages_at_work, fill_a_disk, fill_the_masters_disk, step_the_wall_clock, step_the_monotonic_clock,
    take_a_directory, double_an_identity,
)  # fmt: skip


async def run(root: Path, scenarios: Sequence[Scenario] = SCENARIOS) -> int:
    """One after the other on one group, each judged; returns how many writes were acknowledged."""
    trial = await begin(root)
    try:
        for scenario in scenarios:
            begun = time.monotonic()
            await scenario(trial)
            await trial.judge()
            waited, trial.waited_ms = max(trial.waited_ms, default=0), []
            took = f"{time.monotonic() - begun:5.1f} s"
            print(f"     {scenario.__name__:26} {took}, writers waited {waited:6.0f} ms at most", flush=True)
            trial.begin()
        await trial.writers.abandon()
        return trial.acknowledged
    finally:
        await trial.group.close()
