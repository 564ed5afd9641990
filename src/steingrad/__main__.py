"""The command `steingrad`, which says what to install if its extra is missing."""

import sys


def main() -> None:
    try:
        from .cli import main as command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("steingrad"):
            raise
        package = error.name.partition(".")[0]
        sys.exit(
            f"The command steingrad needs {package}, which comes with an extra: "
            "pip install 'steingrad[experiments]'."
        )
    command()


if __name__ == "__main__":
    main()
