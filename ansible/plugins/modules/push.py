#!/usr/bin/python
# Copyright: the bench authors
# Apache License 2.0 (see LICENSE)
"""Run `bench push` as an Ansible task; the command's JSON becomes the result of the task."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: push
short_description: Measure on a host and fetch a signed bundle
version_added: "0.1.0"
description:
  - Runs C(bench push) on the controller for one host, over SSH.
  - Run it with C(delegate_to) set to C(localhost).
author:
  - The bench authors (@bench)
options:
  manifest:
    description:
      - File on the controller that says what to measure, or how to check the node.
      - The task fails if the host does not pass its check; the bundle is fetched anyway.
    type: path
    required: true
  host:
    description: Name or address of the host.
    type: str
    required: true
  name:
    description: Name of the host, also used in the name of its bundle; defaults to the address.
    type: str
  user:
    description: User to log in as.
    type: str
  port:
    description: Port of the host's sshd.
    type: int
  identity:
    description: SSH key to log in with; keys of an agent are also tried.
    type: path
  ssh_config:
    description: File to read instead of C(~/.ssh/config).
    type: path
  state:
    description:
      - C(measured) runs the manifest and stores its bundle in O(out).
      - C(shipped) copies the image to the host and leaves it there.
      - C(sound) runs preflight and fails if a finding would stop a run; it changes nothing.
    type: str
    choices: [measured, shipped, sound]
    default: measured
  out:
    description: Folder for bundles, on the controller; none inside an installed collection.
    type: path
    default: results
  folders:
    description:
      - Folders on the controller in which the files of O(manifest), O(identity), O(ssh_config), O(image) and
        O(key) are looked for, in this order, if their paths are relative.
      - By default, the working folder of the module, which is the folder of the playbook.
    type: list
    elements: path
    default: []
  engine:
    description: Program that runs the image on the host, or C(venv) or C(none), a Python environment.
    type: str
    choices: [auto, docker, podman, apptainer, venv, none]
    default: auto
  image:
    description: File written by C(bench image build), or a name in the controller's engine.
    type: path
  python:
    description: Python on the host, for O(engine=none) and O(engine=venv).
    type: str
    default: python3
  place:
    description: Working folder on the host; defaults to C($HOME/.bench).
    type: str
  budget:
    description: Time after which no trial starts, for example C(90s), C(60m), C(2h).
    type: str
  level:
    description: Duration of a node check; defaults to the level in the manifest.
    type: str
    choices: [passive, quick, standard, soak]
  device:
    description: C(cpu) ignores the GPUs.
    type: str
    choices: [auto, cpu]
    default: auto
  key:
    description: The operator's SSH key that certifies the run.
    type: path
  once:
    description: Whether to skip the host if a bundle of this manifest from it already exists.
    type: bool
    default: true
  keep:
    description: Whether to leave the image on the host.
    type: bool
    default: false
  command:
    description: The C(bench) command on the controller.
    type: path
    default: bench
attributes:
  check_mode:
    description: Inspects the host, changes nothing, and reports what would be done.
    support: full
  diff_mode:
    description: Shows what would be added.
    support: full
"""

EXAMPLES = r"""
- name: Measure
  bench.appliance.push:
    manifest: hour.json
    host: "{{ ansible_host }}"
    user: "{{ ansible_user }}"
    budget: 60m
  delegate_to: localhost

- name: Accept or reject a node
  bench.appliance.push:
    manifest: node-check.json
    host: "{{ ansible_host }}"
    level: standard
  delegate_to: localhost
"""

RETURN = r"""
node:
  description: Result for the host, as in the output of C(bench push --json).
  returned: always
  type: dict
bundle:
  description: The bundle, on the controller.
  returned: if there is a bundle
  type: str
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

ARGUMENTS = {
    "manifest": {"type": "path", "required": True},
    "host": {"type": "str", "required": True},
    "name": {"type": "str"},
    "user": {"type": "str"},
    "port": {"type": "int"},
    "identity": {"type": "path"},
    "ssh_config": {"type": "path"},
    "state": {"type": "str", "choices": ["measured", "shipped", "sound"], "default": "measured"},
    "out": {"type": "path", "default": "results"},
    "folders": {"type": "list", "elements": "path", "default": []},
    "engine": {
        "type": "str",
        "choices": ["auto", "docker", "podman", "apptainer", "venv", "none"],
        "default": "auto",
    },
    "image": {"type": "path"},
    "python": {"type": "str", "default": "python3"},
    "place": {"type": "str"},
    "budget": {"type": "str"},
    "level": {"type": "str", "choices": ["passive", "quick", "standard", "soak"]},
    "device": {"type": "str", "choices": ["auto", "cpu"], "default": "auto"},
    "key": {"type": "path", "no_log": False},
    "once": {"type": "bool", "default": True},
    "keep": {"type": "bool", "default": False},
    "command": {"type": "path", "default": "bench"},
}
FILES = ("manifest", "identity", "ssh_config", "image", "key")
OPTIONS = (
    "name",
    "identity",
    "ssh_config",
    "out",
    "engine",
    "image",
    "python",
    "place",
    "budget",
    "level",
    "device",
    "key",
)


def address(values):
    """Return the host as an argument of `bench push`."""
    host = values["host"]
    host = f"[{host}]" if ":" in host else host
    user = f"{values['user']}@" if values["user"] else ""
    port = f":{values['port']}" if values["port"] else ""
    return f"{user}{host}{port}"


def found(path, folders):
    """Return the first of the folders' files that a relative path names; the path as it is if none exists."""
    candidates = (Path(folder, path) for folder in folders)
    return next((str(file) for file in candidates if file.is_file()), path)


def in_a_collection(path):
    """Whether a folder is inside an installed collection; an upgrade would delete bundles there."""
    return "ansible_collections" in Path(path).resolve().parts


def command(values, check_mode):
    """Return the command line of `bench push`."""
    words = [values["command"], "push", values["manifest"], address(values), "--json"]
    for name in OPTIONS:
        if values[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(values[name])]
    if check_mode or values["state"] == "sound":
        words.append("--dry-run")
    elif values["state"] == "shipped":
        words.append("--no-run")
    words += ["--keep"] if values["keep"] or values["state"] == "shipped" else []
    words += ["--once"] if values["once"] and values["state"] == "measured" else []
    return words


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    values = module.params
    if in_a_collection(values["out"]):
        message = f"{values['out']} is inside an installed collection; an upgrade would delete its bundles"
        module.fail_json(msg=f"{message} (set push_out to another folder)")
    values.update({name: found(values[name], values["folders"]) for name in FILES if values[name]})
    words = command(values, module.check_mode)
    # Paths on the controller are already expanded; a remaining ~ or $HOME refers to the host.
    try:
        code, out, err = module.run_command(words, expand_user_and_vars=False, handle_exceptions=False)
    except OSError as error:
        advice = "pip install it on the controller, or set push_command to its path"
        module.fail_json(msg=f"{words[0]} cannot be started: {error.strerror} ({advice})")
    try:
        node = json.loads(out)["nodes"][0]
    except (ValueError, KeyError, IndexError):
        module.fail_json(msg=(err or out).strip() or f"bench push ended with exit code {code}", rc=code)
    facts = {"node": node, "changed": bool(node["changed"]) and values["state"] != "sound"}
    if values["state"] == "shipped" and module.check_mode:
        facts["changed"] = bool(node["to_send_bytes"] or node["expected_seconds"])
    if node["bundle"]:
        facts["bundle"] = node["bundle"]
    facts["diff"] = difference(values, node, facts["changed"])
    if code:
        checked = f"the verdict of its check is {node['check']}" if node.get("check") else node["outcome"]
        checked += f": {node['worst']}" if node.get("worst") else ""
        error = node["error"] or {"message": checked, "advice": node["bundle"]}
        advice = f" ({error['advice']})" if error["advice"] else ""
        module.fail_json(msg=f"{error['message']}{advice}", rc=code, **facts)
    module.exit_json(**facts)


def difference(values, node, changed):
    """Return the change in the form that Ansible's --diff shows."""
    wanted = {"measured": f"a bundle of {values['manifest']}", "shipped": f"the image {node['image']}"}
    what = wanted.get(values["state"], "")
    return {
        "before": "" if changed else f"{what}\n",
        "after": f"{what}\n",
        "before_header": values["host"],
        "after_header": values["host"],
    }


if __name__ == "__main__":
    main()
