"""`python -m inline_attention`: the command `inline`, for launchers such as torchrun that start modules."""

from .cli.main import main

if __name__ == "__main__":
    main()
