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
    if [[ "${COMP_WORDS[COMP_CWORD - 1]}" == --as ]]; then
        COMPREPLY=($(compgen -W "user user2 admin service anonymous" -- "$cur"))
        return
    fi
    if [[ "$cur" == -* && "$verb" == admin ]]; then
        COMPREPLY=($(compgen -W "--json --for --end --wait --accept-loss --repair --node --path --recursive \
            --older-than --suspicion --watch --copies --librarian --as --cluster" -- "$cur"))
        return
    fi
    if [[ "$cur" == -* ]]; then
        COMPREPLY=($(compgen -W "--json --recursive --force --list --long --parents --replicas --parallel --bartender --cluster \
            --config --verbose --trace --help --proxy --cert --key --ca-dir --ca-file --anonymous --as \
            --librarian --no-progress" -- "$cur"))
        return
    fi
    if [[ -z "$verb" ]]; then
        COMPREPLY=($(compgen -W "$(chelonia completion verbs 2>/dev/null) mkdir rmdir put get rm" -- "$cur"))
        return
    fi
    case "$verb" in
        completion) COMPREPLY=($(compgen -W "bash zsh" -- "$cur")); return ;;
        help) COMPREPLY=($(compgen -W "$(chelonia completion verbs 2>/dev/null)" -- "$cur")); return ;;
        admin) COMPREPLY=($(compgen -W "status heal pause resume rate node service ahash backup fsck rebuild scrub quarantine add remove replace list approve withdraw maintenance drain undrain forget discard readmit" -- "$cur")); return ;;
    esac
    local IFS=$'\n'
    if [[ "$cur" == /* || ( -z "$cur" && "$verb" != cp && "$verb" != put* ) ]]; then
        # What stands there already may be quoted; readline quotes what is added (-o filenames).
        cur="${cur//\\/}"
        COMPREPLY=($(set -f; chelonia completion names -- "${cur:-/}" 2>/dev/null))
    fi
    case "$verb" in
        put*|get*|cp) COMPREPLY+=($(compgen -f -- "$cur")) ;;
    esac
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == */ ]] && compopt -o nospace
}
complete -o filenames -F _chelonia chelonia
