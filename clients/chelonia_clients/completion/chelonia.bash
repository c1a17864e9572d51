# bash completion for chelonia. What may stand where is asked of chelonia itself.
_chelonia() {
    local IFS=$'\n' cur="${COMP_WORDS[COMP_CWORD]}" head= line word
    local -a words=()
    # Readline takes ':' and '=' for words of their own (COMP_WORDBREAKS): what was typed as one is put together again.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ ${#words[@]} -gt 0 && ( "$word" == [:=]* || "${words[-1]}" == *[:=] ) ]]; then
            words[-1]+="$word"
        else
            words+=("$word")
        fi
    done
    word="${words[-1]}"
    [[ "$word" != "$cur" ]] && head="${word%"${word##*[:=]}"}"
    COMPREPLY=()
    # What stands there already may be quoted; readline quotes what is added (-o filenames).
    for line in $(set -f; chelonia completion next -- "${words[@]:0:${#words[@]}-1}" "${word//\\/}" 2>/dev/null); do
        if [[ "$line" == :files ]]; then
            COMPREPLY+=($(compgen -f -- "${word#"$head"}"))
        else
            COMPREPLY+=("${line#"$head"}")
        fi
    done
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == */ ]] && compopt -o nospace
}
complete -o filenames -F _chelonia chelonia
