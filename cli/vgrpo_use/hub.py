"""Upload a folder to the Hugging Face hub."""

from __future__ import annotations

import shlex
from pathlib import Path

from vgrpo_core import VgrpoError
from vgrpo_core.errors import reason


def check_name(name: str) -> None:
    """Refuse what the hub takes for no name of a repository."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise VgrpoError(f'--push-to-hub "{name}": {str(error).splitlines()[0]}') from error


def push(folder: Path, name: str, *, private: bool) -> str:
    """Upload a folder and return its address; what goes wrong is a VgrpoError, which says that the folder is complete."""
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise VgrpoError(f"--push-to-hub {name}: no token; {_later(folder, name)}")
    api = huggingface_hub.HfApi(library_name="vgrpo")
    try:
        made = api.create_repo(name, private=private or None, exist_ok=True)  # None leaves it to the owner's settings
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Upload from vgrpo")
    except Exception as error:  # of the client, of its HTTP library, which changes with its version, or of the system
        raise VgrpoError(f"--push-to-hub {name}: {reason(error)}; {_later(folder, name)}") from error
    return str(made)


def _later(folder: Path, name: str) -> str:
    upload = shlex.join(["hf", "upload", name, str(folder)])
    return f"nothing was uploaded\n  {folder} is complete. Log in with: hf auth login\n  Then run: {upload}"
