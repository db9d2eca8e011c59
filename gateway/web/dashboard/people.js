// Names of people, compared as the gateway compares them: neither case nor Unicode form counts.

export const folded = (name) => (name ?? "").normalize("NFC").toLowerCase().normalize("NFC");
