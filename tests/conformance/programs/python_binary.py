"""The services of a sandbox by messages in binary form, which the SDK's own library sends unless it is told to send JSON."""

import e2b.envd.client_sync as client
import python_sync as by_json
from connectrpc.codec import proto_binary_codec

client.ENVD_JSON_CODEC = proto_binary_codec()


def case_commands_and_their_output() -> None:
    by_json.case_run_gives_both_outputs_apart()
    by_json.case_large_output_is_complete()
    by_json.case_environment_comes_from_creation_and_call()
    by_json.case_a_working_directory()


def case_commands_that_fail() -> None:
    by_json.case_run_raises_for_an_exit_code()
    by_json.case_a_signal_is_exit_code_minus_one()
    by_json.case_an_unknown_user_is_refused()
    by_json.case_a_deadline_kills_the_command()


def case_input_and_following() -> None:
    by_json.case_stdin_is_written_and_closed()
    by_json.case_connect_to_a_command_gives_what_comes()
    by_json.case_connect_to_an_ended_command_gives_its_end()


def case_files() -> None:
    by_json.case_directories()
    by_json.case_rename_and_remove()
    by_json.case_links_show_where_they_lead()
    by_json.case_files_keep_metadata_until_they_are_written_anew()


def case_watches() -> None:
    by_json.case_a_watch_tells_an_upload_as_three_events_with_their_entries()
    by_json.case_what_cannot_be_watched()


def case_zz_the_sandbox_ends() -> None:
    assert by_json.box().kill() is True
