"""LangChain's Deep Agents: the tools that an agent is given over one of E2B's sandboxes."""

from e2b import Sandbox
from langchain_e2b import E2BSandbox


def main() -> None:
    with Sandbox.create(timeout=600) as made:
        box = E2BSandbox(sandbox=made, workdir="/home/user")
        done = box.execute("echo out; exit 3")
        assert (done.output.strip(), done.exit_code) == ("out", 3), done
        assert box.write("/home/user/a.txt", "one\ntwo\n").error is None
        assert "two" in str(box.read("/home/user/a.txt"))
        assert box.edit("/home/user/a.txt", "two", "three").error is None
        assert "a.txt" in str(box.ls("/home/user"))
        assert "three" in str(box.grep("three", "/home/user"))
        assert "a.txt" in str(box.glob("*.txt", "/home/user"))
        (sent,) = box.upload_files([("/home/user/b.bin", b"\0\xff")])
        assert sent.error is None
        (got,) = box.download_files(["/home/user/b.bin"])
        assert got.content == b"\0\xff"


if __name__ == "__main__":
    main()
