"""`glm47`: turns of GLM-4.7, which are those of GLM-4.5 without line breaks, in a thought at once.

    <|user|>content
    <|assistant|><think> why </think>what it says
        <tool_call>name<arg_key>query</arg_key><arg_value>words</arg_value></tool_call>
    <|observation|><tool_response>result</tool_response>

The prompt opens the thought, so a turn that never closes it is all reasoning. Reasoning is kept, as
the template keeps it where it is given `clear_thinking` false.
"""

from agentrl.tokens.formats.glm4 import ASSISTANT
from agentrl.tokens.formats.glm45 import GLM45Format
from agentrl.tokens.formats.thoughts import THINK, THINK_END

__all__ = ["GLM47Format"]


class GLM47Format(GLM45Format):
    """A `ChatFormat`; see `Marked` for its arguments."""

    NAME = "glm47"
    OPENER = f"{ASSISTANT}{THINK}"
    BREAK = ""
    UNTHOUGHT = THINK_END
