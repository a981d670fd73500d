"""`inline`: the table of contents of the package."""

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run a command. What a user can cause ends in one line and exit code 2, never in a traceback."""
    try:
        _run(arguments)
    except ModuleNotFoundError as missing:
        print(f"inline: the command needs {missing.name}: pip install 'inline-attention[cli]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("inline: stopped", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError) as error:
        print(f"inline: {error}", file=sys.stderr)
        sys.exit(2)


def _run(arguments: list[str] | None) -> None:
    import tyro

    from .bench import BenchLayer, BenchModels
    from .convert import Convert
    from .list import List

    bench = tyro.extras.SubcommandApp()
    bench.command(name="layer")(BenchLayer)
    bench.command(name="models")(BenchModels)
    app = tyro.extras.SubcommandApp()
    app.command(name="list")(List)
    app.command(name="convert")(Convert)
    app.command(bench, name="bench", help="How fast, compared with what one would use instead.")
    app.cli(prog="inline", description="Injective Linear Attention: see, measure, compare.", args=arguments).run()
