"""`python -m steingrad`."""

from steingrad_command import main

if __name__ == "__main__":
    main()
