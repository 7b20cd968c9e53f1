/* --config: a Hugging Face config.json, read as options. */
#ifndef TOOLS_TROPE_CONFIG_H
#define TOOLS_TROPE_CONFIG_H

#include "options.h"

/* What there is to rotate: options that would have no effect are not set. */
typedef struct config_use {
    int frequencies; /* whether --rope-theta and --scaling are needed: the file holds no angles */
    int axes;        /* whether there are positions, or tables, of several axes */
} config_use;

/* The texts that options point to. */
typedef struct config_texts {
    char **texts;
    int count;
} config_texts;

/* Sets options from the file at `path`, or from config.json in that folder, of the layers of that type (NULL: of all). An
 * option that is on the command line too must say the same. Returns nonzero after a complaint; config_release is due in any
 * case, once the options are not used any more. */
int config_apply(const char *path, const char *layer_type, const config_use *use, option_group *groups,
                 config_texts *texts);
void config_release(config_texts *texts);

#endif
