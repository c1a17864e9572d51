# bash completion for chelonia: verbs, options, names in the cluster, local files.
_chelonia() {
    local cur verb word index
    COMPREPLY=()
    cur="${COMP_WORDS[COMP_CWORD]}"
    verb=""
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${COMP_WORDS[index]}"
        case "$word" in
            -z|--config|-b|--bartender|--cluster|--as|--librarian|--proxy|--cert|--key|--ca-dir|--ca-file) ((index++)) ;;
            -*) ;;
            *) verb="$word"; break ;;
        esac
    done
    if [[ "$cur" == -* ]]; then
        COMPREPLY=($(compgen -W "--json --recursive --force --long --parents --replicas --parallel --bartender --cluster \
            --config --verbose --trace --help --proxy --cert --key --ca-dir --ca-file --anonymous --no-progress" -- "$cur"))
        return
    fi
    if [[ -z "$verb" ]]; then
        COMPREPLY=($(compgen -W "$(chelonia completion verbs 2>/dev/null) mkdir rmdir put get rm" -- "$cur"))
        return
    fi
    case "$verb" in
        completion) COMPREPLY=($(compgen -W "bash zsh" -- "$cur")); return ;;
        help) COMPREPLY=($(compgen -W "$(chelonia completion verbs 2>/dev/null)" -- "$cur")); return ;;
        admin) COMPREPLY=($(compgen -W "status node service list approve withdraw maintenance" -- "$cur")); return ;;
    esac
    local IFS=$'\n'
    if [[ "$cur" == /* || ( -z "$cur" && "$verb" != cp && "$verb" != put* ) ]]; then
        COMPREPLY=($(chelonia completion names -- "${cur:-/}" 2>/dev/null | while read -r name; do printf '%q\n' "$name"; done))
    fi
    case "$verb" in
        put*|get*|cp) COMPREPLY+=($(compgen -f -- "$cur")) ;;
    esac
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == */ ]] && compopt -o nospace
}
complete -o filenames -F _chelonia chelonia
