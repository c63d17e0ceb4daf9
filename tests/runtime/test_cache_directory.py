"""Where the cache is, whom it is shared with, and which directories are refused."""

from __future__ import annotations

import functools
import os
import stat
import subprocess
import warnings
from pathlib import Path

import pytest

from staxlab.errors import BuildError
from staxlab.runtime import cache, cache_directory, cache_format, cache_upkeep
from tests.runtime.cache_support import start

KEY = "ab" + "0" * 62
is_root = hasattr(os, "getuid") and os.getuid() == 0
as_root = pytest.mark.skipif(not is_root, reason="only root can give files away")


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(cache_directory, "_private", [])
    cache_directory.clear()
    yield
    cache_directory.clear()


def used(monkeypatch, wanted: Path) -> tuple[Path, list[str]]:
    """The directory in use when ``wanted`` is asked for, and the warnings about it."""
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(wanted))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = cache.directory(), cache.directory()
    assert first == second
    return first, [str(warning.message) for warning in caught]


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("STAXLAB_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.requested_directory() == tmp_path / "xdg" / "staxlab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.requested_directory() == tmp_path / "home" / ".cache" / "staxlab"


def test_a_user_without_a_home_directory_has_a_cache(monkeypatch):
    for name in ("STAXLAB_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert cache.requested_directory().name.startswith("staxlab-")


def world_writable(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o777)
    return path


def below_a_world_writable(path: Path) -> Path:
    """The directory itself is private, but anybody can rename it and put another in its place."""
    world_writable(path)
    (path / "mine").mkdir(mode=0o700)
    return path / "mine"


def given_away(path: Path) -> Path:
    path.mkdir()
    os.chown(path, 12345, 12345)
    return path


def below_anothers(path: Path) -> Path:
    """The sticky bit keeps others from renaming what is not theirs, but not the owner of the directory."""
    path.mkdir()
    (path / "mine").mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    path.chmod(0o1755)
    return path / "mine"


def shared_group(path: Path) -> Path:
    path.mkdir()
    os.chown(path, os.getuid(), 54321)
    path.chmod(0o775)
    return path


def behind_a_link(path: Path) -> Path:
    """Everything above the link is private, and what it leads to is not."""
    link = path.with_name("link")
    link.symlink_to(below_a_world_writable(path))
    return link


REFUSED = [
    world_writable, below_a_world_writable, behind_a_link, pytest.param(given_away, marks=as_root),
    pytest.param(below_anothers, marks=as_root), pytest.param(shared_group, marks=as_root),
]  # fmt: skip


@pytest.mark.parametrize("made", REFUSED)
def test_a_directory_that_others_could_have_written_is_refused(tmp_path, monkeypatch, made):
    """What lies there would be loaded as code."""
    wanted = made(tmp_path / "place")
    planted = wanted / "ab" / KEY
    planted.parent.mkdir(mode=0o700)
    planted.write_bytes(cache_format.pack(KEY, b"planted"))
    planted.chmod(0o600)
    found, (said,) = used(monkeypatch, wanted)
    assert found != wanted.resolve() and stat.S_IMODE(found.stat().st_mode) == 0o700
    assert str(wanted) in said and "could have been written by another user" in said and "STAXLAB_CACHE_DIR" in said
    assert cache.read_verified(KEY) is None, "not even read"
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content" and planted.read_bytes().endswith(b"planted")


@pytest.mark.parametrize("made", REFUSED)
def test_and_is_refused_as_a_shared_one(tmp_path, monkeypatch, cache_dir, made):
    monkeypatch.setenv("STAXLAB_CACHE_SHARED", str(made(tmp_path / "place")))
    with pytest.warns(UserWarning, match="could have been written by another user"):
        assert cache.shared_directories() == ()


def test_a_sticky_directory_above_is_no_danger(tmp_path, monkeypatch):
    above = world_writable(tmp_path / "above")
    above.chmod(0o1777)
    assert used(monkeypatch, above / "mine") == (above / "mine", [])


def test_the_private_group_of_a_user_is_the_user(tmp_path, monkeypatch):
    """Where every user has a group of the same name, new directories are often writable for the group."""
    wanted = tmp_path / "place"
    wanted.mkdir()
    wanted.chmod(0o775)
    import grp
    import pwd

    user = pwd.getpwuid(os.getuid())
    private = grp.getgrgid(wanted.stat().st_gid).gr_name == user.pw_name
    found, said = used(monkeypatch, wanted)
    assert (found == wanted) == private and bool(said) != private


def test_a_file_in_the_way_is_no_obstacle(tmp_path, monkeypatch):
    wanted = tmp_path / "place"
    wanted.write_text("not a directory")
    found, (said,) = used(monkeypatch, wanted)
    assert found != wanted and "cannot be written" in said
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content"


def test_a_loop_of_links_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    found, (said,) = used(monkeypatch, tmp_path / "one")
    assert found.is_dir() and str(tmp_path / "one") in said


class Holder:
    """Something of the standard library stands between the user's line and the place that warns."""

    @functools.cached_property
    def directory(self):
        return cache.directory()


def test_the_warning_names_the_directory_and_points_at_the_users_line(tmp_path, monkeypatch):
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(world_writable(tmp_path / "place")))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Holder().directory
    (warning,) = caught
    assert warning.filename == __file__ and str(tmp_path / "place") in str(warning.message)


def test_no_place_at_all_is_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(cache_directory, "_private", [])

    def refuse(**_):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(cache_directory.tempfile, "mkdtemp", refuse)
    with pytest.raises(BuildError, match="no place for compiled kernels.*No usable temporary directory") as caught:
        cache.directory()
    assert "TMPDIR" in caught.value.remedy


FORKED = """
import warnings
warnings.simplefilter("ignore")
place = cache.directory()
child = os.fork()
if child == 0:
    sys.exit(0)  # runs what is registered for exit
os.waitpid(child, 0)
assert place.is_dir(), "the child has deleted its parent's cache"
print(place)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_private_directory_goes_with_the_process_that_made_it(tmp_path):
    (tmp_path / "file").write_text("")
    process = start(FORKED, tmp_path / "file", stdout=subprocess.PIPE, text=True)
    place = process.communicate()[0].strip()
    assert process.returncode == 0 and place and not Path(place).exists()


# --- Shared and read-only ---------------------------------------------------------------------------------------------


def filled(directory: Path, monkeypatch, content: bytes = b"shared") -> Path:
    """A cache with one entry, as an export leaves it."""
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(directory.with_name("origin")))
    cache.write_verified("plan-" + KEY, content, title="a plan")
    cache_upkeep.export(directory)
    cache.clear()
    return directory


def state(directory: Path) -> dict[Path, tuple]:
    return {p: (p.stat().st_mtime_ns, p.stat().st_mode, p.stat().st_size) for p in (directory, *directory.rglob("*"))}


def test_a_shared_cache_is_read_first_and_never_written(tmp_path, monkeypatch):
    shared = filled(tmp_path / "shared", monkeypatch)
    other = filled(tmp_path / "other", monkeypatch, b"of another")
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path / "mine"))
    cache.write_verified("plan-" + KEY, b"mine")
    assert cache.read_verified("plan-" + KEY) == b"mine"
    monkeypatch.setenv("STAXLAB_CACHE_SHARED", os.pathsep.join(map(str, (shared, other))))
    for path in shared.rglob("*"):
        os.utime(path, (1, 1))
    before = state(shared)
    assert cache.read_verified("plan-" + KEY) == b"shared"
    cache.write_verified(KEY, b"new")
    cache.clear()
    assert state(shared) == before
    assert cache.read_verified("plan-" + KEY) == b"shared"


def test_a_damaged_shared_entry_is_passed_over_and_stays(tmp_path, monkeypatch):
    shared = filled(tmp_path / "shared", monkeypatch)
    path = shared / ("plan-" + KEY)
    path.write_bytes(path.read_bytes()[:-1])
    before = state(shared)
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("STAXLAB_CACHE_SHARED", str(shared))
    assert cache.read_verified("plan-" + KEY) is None
    cache.write_verified("plan-" + KEY, b"mine")
    assert cache.read_verified("plan-" + KEY) == b"mine" and state(shared) == before


def test_a_shared_directory_that_is_not_there_costs_one_warning(monkeypatch, cache_dir, tmp_path):
    monkeypatch.setenv("STAXLAB_CACHE_SHARED", str(tmp_path / "nowhere"))
    with pytest.warns(UserWarning, match="nowhere.*is no directory") as caught:
        assert [cache.shared_directories(), cache.shared_directories()] == [(), ()]
    assert len(caught) == 1 and caught[0].filename == __file__


def test_a_read_only_cache_is_read_and_the_rest_goes_to_a_private_one(tmp_path, monkeypatch):
    """What another process could write yesterday, such as an image of a course, is of use today."""
    wanted = tmp_path / "place"
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(wanted))
    cache.write_verified("plan-" + KEY, b"from before")
    cache_directory.clear()

    def read_only(dir):  # root may write anywhere: so say what a read-only file system says
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache_directory.tempfile, "TemporaryFile", read_only)
    found, (said,) = used(monkeypatch, wanted)
    assert found != wanted and "Read-only file system" in said and "what it holds is used" in said
    assert cache.read_verified("plan-" + KEY) == b"from before"
    cache.write_verified(KEY, b"new")
    assert cache.read_verified(KEY) == b"new" and not (wanted / "ab").exists()


def test_a_directory_that_becomes_read_only_is_replaced_while_the_process_runs(cache_dir, monkeypatch):
    cache.write_verified("plan-" + KEY, b"from before")
    tempfile = cache_directory.tempfile
    make, temporary = tempfile.mkstemp, tempfile.TemporaryFile

    def refusing(original):
        def made(*arguments, dir=None, **options):
            if dir is not None and (Path(dir) == cache_dir or cache_dir in Path(dir).parents):
                raise OSError(30, "Read-only file system")
            return original(*arguments, dir=dir, **options)

        return made

    monkeypatch.setattr(tempfile, "mkstemp", refusing(make))
    monkeypatch.setattr(tempfile, "TemporaryFile", refusing(temporary))
    with pytest.warns(UserWarning, match="Read-only file system.*what it holds is used") as caught:
        cache.write_verified(KEY, b"new")
        cache.write_verified(KEY, b"newer")
    assert len(caught) == 1
    assert cache.read_verified(KEY) == b"newer" and cache.read_verified("plan-" + KEY) == b"from before"
