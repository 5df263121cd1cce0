// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/token_data_options.h"

#include "tessera/runtime/core/option_fields.h"

namespace tessera::zoo {

void visit_fields(runtime::OptionFields& fields, BlendedFile& file) {
  fields.field(
      runtime::required("path"), file.path, "a token file, as `data.train`");
  fields.field(
      "weight",
      file.weight,
      {.min = 0, .open_min = true},
      "its samples are weight / (sum of the weights) of all");
}

void visit_fields(runtime::OptionFields& fields, TokenDataOptions& options) {
  fields.objects(
      "blend",
      options.blend,
      "instead of `data.train`: several token files. An epoch has as many samples as all of them together; of a file with a high weight some are repeated, in another order");
  fields.field(
      "split",
      options.split,
      {.min = 0, .max = 1, .open_max = true},
      "instead of `data.heldout`: the share of the documents of the training data that is held out, e.g. 0.01; the same documents in every run");
  fields.field(
      "end_token",
      options.end_token,
      {.min = 0},
      "the token that ends each document of a file without an index, so that its documents are known; in a file of llm.c it begins them, and is known");
  fields.field(
      "separate_documents",
      options.separate_documents,
      "tokens attend to their own document only, its positions begin at 0, and its first token is not predicted; otherwise a sequence is one text, whatever it was cut from");
  visit_fields(fields, options.objective);
  fields.group("text", "how data that are text are made into token files", [&] {
    visit_fields(fields, options.text);
    fields.field(
        "folder",
        options.text_folder,
        "where the token files of the text are kept, and reused as long as text, tokenizer and these keys are the same; by default `tokens` in the run folder");
  });
}

} // namespace tessera::zoo
