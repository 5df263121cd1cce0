// SPDX-License-Identifier: Apache-2.0
#pragma once
// hold_chat() is a conversation of somebody at a terminal with a model.

#include "shared_text.h"

#include "tessera/text/chat/chat_prompt.h"
#include "tessera/zoo/generation/text_generator.h"

#include <string>

namespace tessera::tools {

/// Reads a line, prints the answer as it is generated, and keeps both for what
/// follows, until /exit or the end of standard input. /reset forgets the
/// conversation. Rank 0 reads and prints. Collective over the job.
/// @param system the first message; empty: none.
void hold_chat(
    const zoo::TextGenerator& generator,
    const text::ChatPrompt& chat,
    const std::string& system,
    SharedText& typed,
    bool prints);

} // namespace tessera::tools
