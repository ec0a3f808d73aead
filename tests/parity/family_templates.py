"""Chat templates of model families, typed anew to the rules of the published ones: the branches for
text, thoughts, tools, calls and results; none for images, dates or built-in tools. docs/formats.md
says of which model each is."""

from tests.parity.newer_templates import NEWER
from tests.parity.qwen_templates import QWEN3_5, QWEN3_CODER

__all__ = ["TEMPLATES"]

LLAMA3 = r"""
{{- bos_token }}
{%- set said, rest = '', messages %}
{%- if messages[0].role == 'system' %}
    {%- set said, rest = messages[0].content | trim, messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools %}{{ 'Environment: ipython\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' + said + '<|eot_id|>' }}
{%- if tools %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' }}
    {{- 'Given the following functions, please respond with a JSON for a function call ' }}
    {{- 'with its proper arguments that best answers the given prompt.\n\n' }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument ' }}
    {{- 'name and its value}.Do not use variables.\n\n' }}
    {%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}
    {{- (rest[0].content | trim) + '<|eot_id|>' }}
    {%- set rest = rest[1:] %}
{%- endif %}
{%- for message in rest %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + (message.content | tojson) }}
    {%- elif 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name }}
        {{- '", "parameters": ' + (call.arguments | tojson) + '}' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
        {{- message.content | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

GLM45 = r"""
{%- set last = namespace(user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user ' }}
    {{- 'query.\n\nYou are provided with function signatures within <tools></tools> XML tags:' }}
    {{- '\n<tools>\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}
    {{- '</tools>\n\nFor each function call, output the function name and arguments within ' }}
    {{- 'the following XML format:\n<tool_call>{function-name}\n' }}
    {{- '<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n' }}
    {{- '<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or '' if loop.index0 > last.user else '' %}
        {{- '<|assistant|>\n<think>' + thought.strip() + '</think>' }}
        {%- if message.content.strip() %}{{ '\n' + message.content.strip() }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>' + call.function.name + '\n' }}
            {%- for name, value in call.function.arguments.items() %}
                {{- '<arg_key>' + name + '</arg_key>\n<arg_value>' }}
                {{- value if value is string else value | tojson }}
                {{- '</arg_value>\n' }}
            {%- endfor %}
            {{- '</tool_call>' }}
        {%- endfor %}
    {%- else %}
        {{- '<|' + message.role + '|>\n' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""

DEEPSEEK_V3 = r"""
{%- set seen = namespace(system='', tool=false, asked=false) %}
{%- for message in messages if message.role == 'system' %}
    {%- set seen.system = seen.system + message.content %}
{%- endfor %}
{%- if tools %}
    {%- set shown = namespace(text='') %}
    {%- for tool in tools %}
        {%- set shown.text = shown.text + '\n```json\n' + (tool | tojson) + '\n```\n' %}
    {%- endfor %}
    {%- set seen.system = seen.system + '\n\nYou are a helpful assistant with tool calling ' +
        'capabilities. When a tool call is needed, you MUST use the following format to issue ' +
        'the call:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>' +
        'FUNCTION_NAME\n```json\n{"param1": "value1", "param2": "value2"}\n```<｜tool▁call▁end｜>' +
        '<｜tool▁calls▁end｜>\n\nMake sure the JSON is valid.## Tools\n\n### Function\n\n' +
        'You have the following functions available:\n\n' + shown.text %}
{%- endif %}
{{- bos_token + seen.system }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set seen.tool = false %}
        {{- '<｜User｜>' + message.content + '<｜Assistant｜>' }}
    {%- elif message.role == 'assistant' %}
        {%- if seen.tool %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}
        {%- set seen.tool = false %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}
            {{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name }}
            {{- '\n```json\n' + (call.function.arguments | tojson) + '\n```<｜tool▁call▁end｜>' }}
            {{- '<｜tool▁calls▁end｜>' if loop.last }}
        {%- endfor %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- elif message.role == 'tool' %}
        {{- '\n' if seen.tool else '<｜tool▁outputs▁begin｜>' }}
        {{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
        {%- set seen.tool = true %}
    {%- endif %}
    {%- set seen.asked = message.role == 'user' %}
{%- endfor %}
{%- if seen.tool %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- if add_generation_prompt and not seen.asked and not seen.tool %}
    {{- '<｜Assistant｜>' }}
{%- endif %}
"""

GLM47 = r"""
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user ' }}
    {{- 'query.\n\nYou are provided with function signatures within <tools></tools> XML tags:' }}
    {{- '\n<tools>\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}
    {{- '</tools>\n\nFor each function call, output the function name and arguments within ' }}
    {{- 'the following XML format:\n<tool_call>{function-name}' }}
    {{- '<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>' }}
    {{- '<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>' }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}
        {{- '<tool_response>' + message.content + '</tool_response>' }}
    {%- elif message.role == 'assistant' %}
        {%- set kept = (clear_thinking is defined and not clear_thinking) %}
        {%- if (kept or loop.index0 > last.user) and message.reasoning_content %}
            {{- '<|assistant|><think>' + message.reasoning_content.strip() + '</think>' }}
        {%- else %}
            {{- '<|assistant|></think>' }}
        {%- endif %}
        {{- message.content.strip() }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>' + call.function.name }}
            {%- for name, value in call.function.arguments.items() %}
                {{- '<arg_key>' + name + '</arg_key><arg_value>' }}
                {{- value if value is string else value | tojson }}
                {{- '</arg_value>' }}
            {%- endfor %}
            {{- '</tool_call>' }}
        {%- endfor %}
    {%- else %}
        {{- '<|' + message.role + '|>' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
    {{- '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}
{%- endif %}
"""

GLM4 = r"""
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\n# 可用工具' }}
    {%- for tool in tools %}
        {{- '\n\n## ' + tool.function.name + '\n\n' + (tool.function | tojson(indent=4)) }}
        {{- '\n在调用上述函数时，请使用 Json 格式表示调用的参数。' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages if message.role == 'system' %}
    {{- '<|system|>\n' + message.content }}
{%- endfor %}
{%- for message in messages if message.role != 'system' %}
    {{- '<|' + message.role + '|>' + message.get('metadata', '') + '\n' + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""

MINIMAX_M2 = r"""
{%- set system, rest = none, messages %}
{%- if messages[0].role == 'system' %}
    {%- set system, rest = messages[0].content, messages[1:] %}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in rest %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{{- ']~!b[]~b]system\n' + (system or 'You are a helpful assistant.') }}
{%- if tools %}
    {{- '\n\n# Tools\nYou may call one or more tools to assist with the user query.\n' }}
    {{- 'Here are the tools available in JSONSchema format:\n\n<tools>\n' }}
    {%- for tool in tools %}{{ '<tool>' + (tool.function | tojson) + '</tool>\n' }}{% endfor %}
    {{- '</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass ' }}
    {{- 'parameters:\n\n<minimax:tool_call>\n<invoke name="tool-name-1">\n' }}
    {{- '<parameter name="param-key-1">param-value-1</parameter>\n' }}
    {{- '<parameter name="param-key-2">param-value-2</parameter>\n' }}
    {{- '...\n</invoke>\n</minimax:tool_call>' }}
{%- endif %}
{{- '[e~[\n' }}
{%- for message in rest %}
    {%- if message.role == 'assistant' %}
        {{- ']~b]ai\n' }}
        {%- if message.reasoning_content and loop.index0 > last.user %}
            {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content }}
        {%- if message.tool_calls %}
            {{- '\n<minimax:tool_call>\n' }}
            {%- for call in message.tool_calls %}
                {{- '<invoke name="' + call.function.name + '">\n' }}
                {%- for name, value in call.function.arguments | items %}
                    {{- '<parameter name="' + name + '">' }}
                    {{- value if value is string else value | tojson }}
                    {{- '</parameter>\n' }}
                {%- endfor %}
                {{- '</invoke>\n' }}
            {%- endfor %}
            {{- '</minimax:tool_call>' }}
        {%- endif %}
        {{- '[e~[\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem.role != 'tool' %}{{ ']~b]tool' }}{% endif %}
        {{- '\n<response>' + message.content + '</response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '[e~[\n' }}{% endif %}
    {%- else %}
        {{- ']~b]user\n' + message.content + '[e~[\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}
"""

KIMI_K2 = r"""
{%- if tools %}
    {{- '<|im_system|>tool_declare<|im_middle|>' + (tools | tojson) + '<|im_end|>' }}
{%- endif %}
{%- if messages[0].role != 'system' %}
    {{- '<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.' }}
    {{- '<|im_end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ('user', 'assistant') %}{{ '<|im_' + message.role + '|>' }}
    {%- else %}{{ '<|im_system|>' }}
    {%- endif %}
    {{- message.role + '<|im_middle|>' }}
    {%- if message.role == 'tool' %}{{ '## Return of ' + message.tool_call_id + '\n' }}{% endif %}
    {{- message.content }}
    {%- if message.tool_calls %}
        {{- '<|tool_calls_section_begin|>' }}
        {%- for call in message.tool_calls %}
            {{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
            {{- (call.function.arguments | tojson) + '<|tool_call_end|>' }}
        {%- endfor %}
        {{- '<|tool_calls_section_end|>' }}
    {%- endif %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}
"""

#: By the name of the chat format that equals it.
TEMPLATES = {
    "deepseek-v3": DEEPSEEK_V3,
    "glm4": GLM4,
    "glm45": GLM45,
    "glm47": GLM47,
    "kimi-k2": KIMI_K2,
    "llama3": LLAMA3,
    "minimax-m2": MINIMAX_M2,
    "qwen3-5": QWEN3_5,
    "qwen3-coder": QWEN3_CODER,
    **NEWER,
}
