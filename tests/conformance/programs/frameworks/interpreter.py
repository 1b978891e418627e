"""E2B's code interpreter: results, charts, tables, streams, errors, contexts and time-outs; synchronous and not."""

import asyncio
from typing import Any

from e2b import TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

CHART = "import matplotlib.pyplot as plt; plt.bar(['a', 'b'], [1, 2]); plt.show()"
TABLE = "import pandas; pandas.DataFrame({'a': [1, 2]})"
ENDLESS = "import time\nwhile True: time.sleep(0.1)"


def check_chart(execution: Any) -> None:
    """A picture, and what it shows."""
    (result,) = execution.results
    assert result.png
    assert [item.value for item in result.chart.elements] == [1, 2]


def synchronous() -> None:
    with Sandbox.create(timeout=600) as box:
        box.run_code("x = 20")
        assert box.run_code("x + 1").text == "21"
        said: list[str] = []
        box.run_code("print('hello')", on_stdout=lambda message: said.append(message.line))
        assert "".join(said) == "hello\n"
        assert box.run_code("1 / 0").error.name == "ZeroDivisionError"
        check_chart(box.run_code(CHART))
        assert "<table" in box.run_code(TABLE).results[0].html
        apart = box.create_code_context(cwd="/tmp")
        assert box.run_code("x", context=apart).error.name == "NameError"
        assert box.run_code("import os; os.getcwd()", context=apart).text == "'/tmp'"
        try:
            box.run_code(ENDLESS, timeout=2)
        except TimeoutException:
            assert box.run_code("x").text == "20"
        else:
            raise AssertionError("a time-out did not end the code")
        box.files.write("/home/user/data.csv", "a\n1\n")
        assert box.run_code("len(open('/home/user/data.csv').read())").text == "4"


async def asynchronous() -> None:
    box = await AsyncSandbox.create(timeout=600)
    try:
        await box.run_code("x = 20")
        assert (await box.run_code("x + 1")).text == "21"
        check_chart(await box.run_code(CHART))
        apart = await box.create_code_context()
        assert (await box.run_code("x", context=apart)).error.name == "NameError"
    finally:
        await box.kill()


if __name__ == "__main__":
    synchronous()
    asyncio.run(asynchronous())
