"""More chat templates of model families, as in `family_templates.py`: typed anew to the rules of
the published ones. That of gpt-oss follows OpenAI's docs/format.md, from which its own departs."""

__all__ = ["NEWER"]

QWEN3_THINKING = r"""
{%- set said, rest = none, messages %}
{%- if messages[0].role == 'system' %}
    {%- set said, rest = messages[0].content, messages[1:] %}
{%- endif %}
{%- if said is not none or tools %}{{ '<|im_start|>system\n' + (said or '') }}{% endif %}
{%- if tools %}
    {{- ('' if said is none else '\n\n') + '# Tools\n\nYou may call one or more functions to ' }}
    {{- 'assist with the user query.\n\nYou are provided with function signatures within ' }}
    {{- '<tools></tools> XML tags:\n<tools>' }}
    {%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and ' }}
    {{- 'arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
{%- endif %}
{%- if said is not none or tools %}{{ '<|im_end|>\n' }}{% endif %}
{%- set last = namespace(user=-1) %}
{%- for message in rest %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or '' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > last.user and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{ '\n' }}{% endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' + ('' if instructed else '<think>\n') }}
{%- endif %}
"""

DEEPSEEK_R1 = r"""
{%- set seen = namespace(tool=false, user=false) %}
{{- bos_token }}
{%- for message in messages if message.role == 'system' %}{{ message.content }}{% endfor %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'tool' %}
        {{- '\n' if seen.tool else '<｜tool▁outputs▁begin｜>' }}
        {{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
    {%- elif message.role == 'user' %}
        {{- '<｜User｜>' + message.content }}
    {%- else %}
        {{- '<｜tool▁outputs▁end｜>' if seen.tool else '<｜Assistant｜>' }}
        {{- message.content.split('</think>')[-1] }}
        {%- for call in message.tool_calls or [] %}
            {{- '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}
            {{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name }}
            {{- '\n```json\n' + (call.function.arguments | tojson) + '\n```<｜tool▁call▁end｜>' }}
            {{- '<｜tool▁calls▁end｜>' if loop.last }}
        {%- endfor %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- endif %}
    {%- set seen.tool = message.role == 'tool' %}
{%- endfor %}
{%- if seen.tool %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- if add_generation_prompt and not seen.tool %}{{ '<｜Assistant｜><think>\n' }}{% endif %}
"""

HARMONY = r"""
{%- set told, rest = '', messages %}
{%- if messages[0].role == 'system' %}
    {%- set told, rest = messages[0].content, messages[1:] %}
{%- endif %}
{{- '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n' }}
{{- 'Knowledge cutoff: 2024-06\n\nReasoning: ' + (reasoning_effort or 'medium') + '\n\n' }}
{{- '# Valid channels: analysis, commentary, final. Channel must be included for every ' }}
{{- 'message.' }}
{%- if tools %}
    {{- "\nCalls to these tools must go to the commentary channel: 'functions'." }}
{%- endif %}
{{- '<|end|>' }}
{%- if told or tools %}
    {{- '<|start|>developer<|message|>' }}
    {%- if told %}{{ '# Instructions\n\n' + told + ('\n\n' if tools else '') }}{% endif %}
    {%- if tools %}
        {{- '# Tools\n\n## functions\n\nnamespace functions {\n\n' }}
        {%- for tool in tools %}
            {%- set function = tool.function %}
            {{- '// ' + function.description + '\ntype ' + function.name + ' = (_: {\n' }}
            {%- for name, schema in function.parameters.properties.items() %}
                {%- if schema.description %}{{ '// ' + schema.description + '\n' }}{% endif %}
                {{- name + ('' if name in function.parameters.required else '?') + ': ' }}
                {{- ('number' if schema.type == 'integer' else schema.type) + ',\n' }}
            {%- endfor %}
            {{- '}) => any;\n\n' }}
        {%- endfor %}
        {{- '} // namespace functions' }}
    {%- endif %}
    {{- '<|end|>' }}
{%- endif %}
{%- set last = namespace(final=-1, call='') %}
{%- for message in rest %}
    {%- if message.role == 'assistant' and not message.tool_calls %}
        {%- set last.final = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start|>functions.' + last.call + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- message.content + '<|end|>' }}
    {%- else %}
        {%- if message.reasoning_content and loop.index0 > last.final %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' }}
            {{- message.reasoning_content + '<|end|>' }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<|start|>assistant<|channel|>commentary to=functions.' + call.function.name }}
            {{- ' <|constrain|>json<|message|>' + (call.function.arguments | tojson) + '<|call|>' }}
            {%- set last.call = call.function.name %}
        {%- else %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""

MISTRAL_V3 = r"""
{%- set told, rest = '', messages %}
{%- if messages[0].role == 'system' %}
    {%- set told, rest = messages[0].content, messages[1:] %}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in rest %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{{- bos_token }}
{%- if SEVEN and told %}{{ '[SYSTEM_PROMPT]' + told + '[/SYSTEM_PROMPT]' }}{% endif %}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.index0 == last.user %}
            {{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' }}
        {%- if told and loop.index0 == last.user and not SEVEN %}{{ told + '\n\n' }}{% endif %}
        {{- message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS][' if loop.first else ', ' }}
            {{- '{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + ', "id": "' + call.id + '"}' }}
            {{- ']' if loop.last }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif SEVEN %}
        {{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content }}
        {{- '[/TOOL_RESULTS]' }}
    {%- else %}
        {%- set told = {'content': message.content, 'call_id': message.tool_call_id} %}
        {{- '[TOOL_RESULTS]' + (told | tojson) + '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

#: By the name of the chat format that equals it.
NEWER = {
    "deepseek-r1": DEEPSEEK_R1,
    "harmony": HARMONY,
    "mistral-v3": MISTRAL_V3.replace("SEVEN", "false"),
    "mistral-v7": MISTRAL_V3.replace("SEVEN", "true"),
    "qwen3-thinking": QWEN3_THINKING,
}
