"""The scripts that shells load: each calls `bench completion --of` with the words that were typed."""

from __future__ import annotations

BASH = r"""# Completion of bench for bash: eval "$(bench completion bash)", or a file in
# ~/.local/share/bash-completion/completions/bench
_bench() {
    local line current=${COMP_WORDS[COMP_CWORD]}
    [[ $current == "=" ]] && current=
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do
                COMPREPLY+=("$line")
            done < <(compgen -f -- "$current")
        elif [[ -n $line ]]; then
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <(bench completion --of "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _bench bench
"""

ZSH = r"""#compdef bench
# Completion of bench for zsh: eval "$(bench completion zsh)" behind compinit, or a file _bench in $fpath
_bench() {
    local line files=
    local -a found
    for line in "${(@f)$(bench completion --of "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == :files ]]; then
            files=1
        elif [[ $line == *$'\t'* ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        elif [[ -n $line ]]; then
            found+=("${line//:/\\:}")
        fi
    done
    (( $#found )) && _describe bench found
    [[ -n $files ]] && _files
}
if [[ $funcstack[1] == _bench ]]; then _bench "$@"; else compdef _bench bench; fi
"""

FISH = r"""# Completion of bench for fish: bench completion fish | source, or a file
# ~/.config/fish/completions/bench.fish
function __bench_completed
    set -l typed (commandline -opc) (commandline -ct)
    for line in (bench completion --of $typed[2..-1] 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c bench -f -a "(__bench_completed)"
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
