#!/usr/bin/python
# Copyright: the bench authors
# Apache License 2.0 (see LICENSE)
"""`bench push` as a task: the command does the work, its JSON is the result."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: push
short_description: Measure on a host, and bring back a signed bundle
version_added: "0.1.0"
description:
  - Runs C(bench push) on the controller for one host, over SSH.
  - Run it with C(delegate_to) set to C(localhost).
author:
  - The bench authors (@bench)
options:
  manifest:
    description:
      - What to measure, or how to check the node; a file of the controller.
      - A host that does not pass its check fails the task; its bundle is there all the same.
    type: path
    required: true
  host:
    description: Name or address of the host.
    type: str
    required: true
  name:
    description: What to call the host, also in the name of its bundle; the way to it if left out.
    type: str
  user:
    description: Whom to log in as.
    type: str
  port:
    description: Where its sshd listens.
    type: int
  identity:
    description: An SSH key to log in with; those of an agent are tried anyway.
    type: path
  ssh_config:
    description: A file to read instead of C(~/.ssh/config).
    type: path
  state:
    description:
      - C(measured) has a bundle of the manifest in O(out).
      - C(shipped) has the image on the host, and leaves it there.
      - C(sound) has nothing that preflight finds to stop a run; nothing is changed.
    type: str
    choices: [measured, shipped, sound]
    default: measured
  out:
    description: Where bundles go, on the controller.
    type: path
    default: results
  engine:
    description: What runs the image on the host; C(none) is an environment of Python's.
    type: str
    choices: [auto, docker, podman, apptainer, none]
    default: auto
  image:
    description: A file of C(bench image build), or a name in the controller's engine.
    type: path
  python:
    description: The Python on the host, for O(engine=none).
    type: str
    default: python3
  place:
    description: The folder to work in, on the host; C($HOME/.bench) if left out.
    type: str
  budget:
    description: Start no trial after this long, as C(90s), C(60m), C(2h).
    type: str
  level:
    description: How long a node check takes; the manifest's if left out.
    type: str
    choices: [quick, standard, soak]
  device:
    description: C(cpu) leaves the GPUs alone.
    type: str
    choices: [auto, cpu]
    default: auto
  key:
    description: The operator's SSH key, which certifies the run.
    type: path
  once:
    description: Whether a bundle of this manifest from this host, if it is there, is enough.
    type: bool
    default: true
  keep:
    description: Whether the image stays on the host.
    type: bool
    default: false
  command:
    description: The C(bench) of the controller.
    type: path
    default: bench
attributes:
  check_mode:
    description: Looks at the host, changes nothing, and says what would be done.
    support: full
  diff_mode:
    description: Shows what would be there that is not.
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

- name: Accept or refuse
  bench.appliance.push:
    manifest: node-check.json
    host: "{{ ansible_host }}"
    level: standard
  delegate_to: localhost
"""

RETURN = r"""
node:
  description: What became of the host, as C(bench push --json) says it.
  returned: always
  type: dict
bundle:
  description: The bundle, on the controller.
  returned: when there is one
  type: str
"""

import json

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
    "engine": {
        "type": "str",
        "choices": ["auto", "docker", "podman", "apptainer", "none"],
        "default": "auto",
    },
    "image": {"type": "path"},
    "python": {"type": "str", "default": "python3"},
    "place": {"type": "str"},
    "budget": {"type": "str"},
    "level": {"type": "str", "choices": ["quick", "standard", "soak"]},
    "device": {"type": "str", "choices": ["auto", "cpu"], "default": "auto"},
    "key": {"type": "path", "no_log": False},
    "once": {"type": "bool", "default": True},
    "keep": {"type": "bool", "default": False},
    "command": {"type": "path", "default": "bench"},
}
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
    """The host in the form that `bench push` takes."""
    host = values["host"]
    host = f"[{host}]" if ":" in host else host
    user = f"{values['user']}@" if values["user"] else ""
    port = f":{values['port']}" if values["port"] else ""
    return f"{user}{host}{port}"


def command(values, check_mode):
    """The command line of `bench push`."""
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
    words = command(values, module.check_mode)
    # The controller's files have been found by now; what is left of ~ and $HOME is the host's.
    code, out, err = module.run_command(words, expand_user_and_vars=False)
    try:
        node = json.loads(out)["nodes"][0]
    except (ValueError, KeyError, IndexError):
        module.fail_json(msg=(err or out).strip() or f"bench push ended with exit code {code}", rc=code)
    facts = {"node": node, "changed": bool(node["changed"]) and values["state"] != "sound"}
    if values["state"] == "shipped" and module.check_mode:
        facts["changed"] = bool(node["to_send_bytes"])
    if node["bundle"]:
        facts["bundle"] = node["bundle"]
    facts["diff"] = difference(values, node, facts["changed"])
    if code:
        checked = f"its check came to {node['check']}" if node.get("check") else node["outcome"]
        checked += f": {node['worst']}" if node.get("worst") else ""
        error = node["error"] or {"message": checked, "advice": node["bundle"]}
        advice = f" ({error['advice']})" if error["advice"] else ""
        module.fail_json(msg=f"{error['message']}{advice}", rc=code, **facts)
    module.exit_json(**facts)


def difference(values, node, changed):
    """The change in the form that Ansible's --diff shows."""
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
