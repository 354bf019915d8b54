"""What must not be written down: looked up where it is used, in the environment or in a file that is named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from millstream import arguments
from millstream.errors import TopologyError


@dataclass(frozen=True)
class Secret:
    """Says where a secret is, not what it is: so it may be shown, pickled and kept. `secret` makes one."""

    env: str | None = None
    file: str | None = None

    def reveal(self) -> str:
        """As it is now. A file's last line break does not belong to it."""
        if self.env is not None:
            found = os.environ.get(self.env)
            if found is None:
                raise TopologyError(
                    f"the environment variable {self.env} is not set, and a secret is to come from it; set it, and start again"
                )
            return found
        assert self.file is not None
        try:
            return Path(self.file).read_text().rstrip("\r\n")
        except OSError as error:
            raise TopologyError(f"a secret is to come from the file {self.file}, and it cannot be read: {error.strerror}") from None
        except UnicodeError:
            raise TopologyError(f"a secret is to come from the file {self.file}, and it is not UTF-8; write it as text") from None


def secret(*, env: str | None = None, file: str | PathLike[str] | None = None) -> Secret:
    """A secret, such as a password, by the name of an environment variable or of a file.

    ms.secret(env="ORDERS_PASSWORD")
    """
    if (env is None) == (file is None):
        raise TopologyError("secret: give env=, the name of an environment variable, or file=, the path of a file")
    if env is not None and (not isinstance(env, str) or not env):
        raise TopologyError(f"secret(env={env!r}): give the name of an environment variable")
    return Secret(env, None if file is None else arguments.path("secret", file))
