# bash completion for chelonia. What may stand where is asked of chelonia itself.
_chelonia() {
    local IFS=$'\n' cur="${COMP_WORDS[COMP_CWORD]}" line
    local -a words=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
    COMPREPLY=()
    # What stands there already may be quoted; readline quotes what is added (-o filenames).
    for line in $(set -f; chelonia completion next -- "${words[@]}" "${cur//\\/}" 2>/dev/null); do
        if [[ "$line" == :files ]]; then
            COMPREPLY+=($(compgen -f -- "$cur"))
        else
            COMPREPLY+=("$line")
        fi
    done
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == */ ]] && compopt -o nospace
}
complete -o filenames -F _chelonia chelonia
