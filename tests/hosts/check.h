/* What programs of tests end with: line, condition and the last sentence. */
#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            printf("line %d: %s: %s\n", __LINE__, #condition, error.sentence); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)
