"""
Processes started, watched, killed and restarted, on one machine.

The supervisor reports every step as an event: a flat mapping of JSON values with at least ``event``, and with
``member`` and ``role`` where it is about a member.

``member-started``    pid, restart_count, restarted_after_seconds (since the fault; null at first)
``member-running``    generation, recovered_after_seconds: a restarted member reports the running phase again
``member-fault``      pid, reason (``silent``, ``exit code 3``, ``SIGKILL``, …), exit_code, signal, phase, progress,
                      generation, note, detected_after_seconds (since its death or its last sign of life)
``member-waiting``    restart_after_seconds
``member-gave-up``    reason, exit_code (what the run ends with if the member is essential)
``member-done``       reason (how it ended: ``exit code 0``)
``member-stopped``    reason (how it ended when it was asked to stop)
``member-unreaped``   pid: killed but not dead in time; the run goes on without waiting for it
``member-unlogged``   reason: its log cannot be written; its output is still forwarded
``run-stopping``      exit_code, signal: members are being stopped, for the one or the other
``run-ended``         exit_code
"""
