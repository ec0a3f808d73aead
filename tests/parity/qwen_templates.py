"""Chat templates of Qwen's families, as in `family_templates.py`: typed anew to the rules of
the published ones."""

__all__ = ["QWEN", "QWEN3_5", "QWEN3_CODER"]

#: The turns and tool calls of Qwen2.5 and Qwen3; `DEFAULT` is where the two differ.
QWEN = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- elif DEFAULT %}
        {{- DEFAULT + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" }}
    {{- "You are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and " }}
    {{- "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": " }}
    {{- "<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- elif DEFAULT %}
    {{- '<|im_start|>system\n' + DEFAULT + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- elif message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}
                {{- '\n' }}
            {%- endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

QWEN3_CODER = r"""
{%- macro others(told, known) %}
    {%- for key in told if key not in known %}
        {%- set value = told[key] %}
        {%- set shown = value | string if value is string or value is number else value | tojson %}
        {{- '\n<' ~ key ~ '>' ~ shown ~ '</' ~ key ~ '>' }}
    {%- endfor %}
{%- endmacro %}
{%- set said, rest = none, messages %}
{%- if messages[0].role == 'system' %}
    {%- set said, rest = messages[0].content, messages[1:] %}
{%- endif %}
{%- if said is not none or tools %}
    {{- '<|im_start|>system\n' }}
    {%- if said is not none %}
        {{- said }}
    {%- else %}
        {{- 'You are Qwen, a helpful AI assistant that can interact with a computer to ' }}
        {{- 'solve tasks.' }}
    {%- endif %}
    {%- if tools %}
        {{- '\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>' }}
        {%- for tool in tools %}
            {%- set function = tool.function %}
            {{- '\n<function>\n<name>' + function.name + '</name>' }}
            {{- '\n<description>' + (function.description | trim) + '</description>' }}
            {{- '\n<parameters>' }}
            {%- for name, told in function.parameters.properties.items() %}
                {{- '\n<parameter>\n<name>' + name + '</name>' }}
                {%- if told.type is defined %}{{ '\n<type>' ~ told.type ~ '</type>' }}{% endif %}
                {%- if told.description is defined %}
                    {{- '\n<description>' + (told.description | trim) + '</description>' }}
                {%- endif %}
                {{- others(told, ['name', 'type', 'description']) + '\n</parameter>' }}
            {%- endfor %}
            {{- others(function.parameters, ['type', 'properties']) + '\n</parameters>' }}
            {{- others(function, ['type', 'name', 'description', 'parameters']) }}
            {{- '\n</function>' }}
        {%- endfor %}
        {{- '\n</tools>\n\nIf you choose to call a function ONLY reply in the following format ' }}
        {{- 'with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n' }}
        {{- '<parameter=example_parameter_1>\nvalue_1\n</parameter>\n' }}
        {{- '<parameter=example_parameter_2>\nThis is the value for the second parameter\n' }}
        {{- 'that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n' }}
        {{- '<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an ' }}
        {{- 'inner <function=...></function> block must be nested within ' }}
        {{- '<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n' }}
        {{- '- You may provide optional reasoning for your function call in natural ' }}
        {{- 'language BEFORE the function call, but NOT after' }}
        {{- '\n- If there is no function call available, answer the question like normal with ' }}
        {{- 'your current knowledge and do not tell the user about function calls\n</IMPORTANT>' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in rest %}
    {%- if message.role == 'tool' %}
        {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user\n' }}{% endif %}
        {{- '<tool_response>\n' + message.content + '\n</tool_response>\n' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- elif message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content | trim %}{{ '\n' + (message.content | trim) + '\n' }}{% endif %}
        {%- for call in message.tool_calls %}
            {{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for name, value in call.function.arguments | items %}
                {{- '<parameter=' + name + '>\n' }}
                {%- if value is mapping or (value is sequence and value is not string) %}
                    {{- value | tojson }}
                {%- else %}
                    {{- value | string }}
                {%- endif %}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

QWEN3_5 = r"""
{%- set said, rest = none, messages %}
{%- if messages[0].role == 'system' %}
    {%- set said, rest = messages[0].content | trim, messages[1:] %}
{%- endif %}
{%- if said is not none or tools %}{{ '<|im_start|>system\n' }}{% endif %}
{%- if tools %}
    {{- '# Tools\n\nYou have access to the following functions:\n\n<tools>' }}
    {%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}
    {{- '\n</tools>\n\nIf you choose to call a function ONLY reply in the following format ' }}
    {{- 'with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n' }}
    {{- '<parameter=example_parameter_1>\nvalue_1\n</parameter>\n' }}
    {{- '<parameter=example_parameter_2>\nThis is the value for the second parameter\n' }}
    {{- 'that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n' }}
    {{- '<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an ' }}
    {{- 'inner <function=...></function> block must be nested within ' }}
    {{- '<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n' }}
    {{- '- You may provide optional reasoning for your function call in natural ' }}
    {{- 'language BEFORE the function call, but NOT after' }}
    {{- '\n- If there is no function call available, answer the question like normal with ' }}
    {{- 'your current knowledge and do not tell the user about function calls\n</IMPORTANT>' }}
    {%- if said %}{{ '\n\n' }}{% endif %}
{%- endif %}
{%- if said is not none or tools %}{{ (said or '') + '<|im_end|>\n' }}{% endif %}
{%- set last = namespace(user=-1) %}
{%- for message in rest %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in rest %}
    {%- set content = message.content | trim %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if preserve_thinking is true or loop.index0 > last.user %}
            {{- '<think>\n' + (message.reasoning_content or '') | trim + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- ('\n\n' if content else '') if loop.first else '\n' }}
            {{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for name, value in call.function.arguments | items %}
                {%- set nested = value is mapping or (value is sequence and value is not string) %}
                {{- '<parameter=' + name + '>\n' }}
                {{- value | tojson if nested else value | string }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}
"""
