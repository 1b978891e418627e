"""Harbor: the environment of a task, built from its Dockerfile."""

import asyncio
import tempfile
from pathlib import Path

from harbor.environments.e2b import E2BEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        task = place / "task"
        task.mkdir()
        (task / "Dockerfile").write_text("FROM base\nWORKDIR /app\nRUN echo built > made\n")
        paths = TrialPaths(trial_dir=place / "trial")
        paths.mkdir()
        environment = E2BEnvironment(
            environment_dir=task,
            environment_name="conformance",
            session_id="conformance__1__env",
            trial_paths=paths,
            task_env_config=EnvironmentConfig(cpus=1, memory_mb=1024),
        )
        await environment.start(force_build=False)
        try:
            done = await environment.exec("cat made; pwd; echo $A", env={"A": "1"})
            assert (done.stdout or "").split() == ["built", "/app", "1"], done
            (place / "up").mkdir()
            (place / "up" / "file").write_text("sent")
            await environment.upload_dir(place / "up", "/app/up")
            await environment.upload_file(place / "up" / "file", "/app/one")
            assert (await environment.exec("cat up/file one")).stdout == "sentsent"
            await environment.download_dir("/app", place / "down")
            assert (place / "down" / "made").read_text() == "built\n"
            assert (await environment.exec("exit 3")).return_code == 3
        finally:
            await environment.stop(delete=True)


if __name__ == "__main__":
    asyncio.run(main())
