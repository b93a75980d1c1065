"""`python -m mnemax` is the command `mnemax`."""

from mnemax.launch.cli import main

if __name__ == "__main__":
    main()
