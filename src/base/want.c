/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "base/base.h"

#include <string.h>

tsr_status tsri_want(const char *file, int line, const char *func, const char *names,
                     const void *const *pointers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t length = strcspn(names, ",");

        if (pointers[i] == NULL) {
            return tsr_error_raise(TSR_ERR_INVALID, file, line, func, "%s: %.*s is NULL", func,
                                   (int)length, names);
        }
        names += length;
        names += strspn(names, ", ");
    }
    return TSR_OK;
}

tsr_status tsri_want_list(const char *func, const char *name, const void *list,
                          const char *count_name, int count, size_t pointer_bytes)
{
    const unsigned char *at = list;

    if (count < 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: %s is %d, wants 0 or more", func, count_name, count);
    }
    if (list == NULL && count > 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: %s is NULL, wants %d entries", func, name, count);
    }
    for (int i = 0; pointer_bytes > 0 && i < count; i++) {
        void *entry = NULL;

        memcpy(&entry, at + (size_t)i * pointer_bytes, sizeof(entry));
        if (entry == NULL) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s: %s[%d] is NULL", func, name, i);
        }
    }
    return TSR_OK;
}
